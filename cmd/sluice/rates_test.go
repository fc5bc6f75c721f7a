package main

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"
)

// No replica waits for another's answer.
func TestReplicasAreAskedAtOnce(t *testing.T) {
	t.Parallel()
	var asked sync.WaitGroup
	asked.Add(2)
	all := make(chan struct{})
	go func() { asked.Wait(); close(all) }()
	client := &adminClient{http: http.DefaultClient}
	for range 2 {
		var once sync.Once
		replica := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			once.Do(asked.Done)
			select {
			case <-all:
				fmt.Fprint(w, `{"state":"running"}`)
			case <-time.After(5 * time.Second):
				w.WriteHeader(http.StatusGatewayTimeout)
			}
		}))
		defer replica.Close()
		client.urls = append(client.urls, replica.URL)
	}
	for i, r := range askStatus(t.Context(), client) {
		if r.Error != "" || r.URL != client.urls[i] || r.at.IsZero() {
			t.Errorf("%s: %q at %v", r.URL, r.Error, r.at)
		}
	}
}

// Rates are over the time between a replica's own two answers.
func TestRatesAreOverRealTime(t *testing.T) {
	before, now := troubledGroup()
	now[0].at = before[0].at.Add(4 * time.Second)  // 1000 records ended, the lag fell by 1000
	now[1].at = before[1].at.Add(10 * time.Second) // 1500 of each
	sum := summarise(before, now)
	if want := 250.0 + 150; sum.Rate != want || sum.ReadRate != want || sum.Topics[0].Rate != want {
		t.Errorf("%v and %v a second, the topic %v, want %v", sum.Rate, sum.ReadRate, sum.Topics[0].Rate, want)
	}
	if want := float64(sum.Lag) / 400; sum.ETASeconds != want {
		t.Errorf("eta %v, want %v", sum.ETASeconds, want)
	}
	// One that did not answer before did not index everything meanwhile.
	before[1] = replicaStatus{URL: before[1].URL, Error: "busy"}
	if sum = summarise(before, now); sum.Rate != 250 {
		t.Errorf("%v a second, want 250", sum.Rate)
	}
	if sum = summarise(nil, now); sum.Rate != 0 || sum.ETASeconds != -1 {
		t.Errorf("at the first look: %v a second, eta %v", sum.Rate, sum.ETASeconds)
	}
}
