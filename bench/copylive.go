package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// liveCopy is a migration's copy beside live traffic.
type liveCopy struct {
	Rate     int     `json:"records_per_s"` // that were produced meanwhile
	Docs     int64   `json:"docs"`
	Seconds  float64 `json:"seconds"`
	DocsPerS float64 `json:"docs_per_s"`
	Limit    float64 `json:"lag_limit_s"`
	// Delay is how long the oldest record that is not handled has waited, in
	// seconds, looked at ten times a second; Before is the same before the copy.
	Before, Delay percentiles
	Concurrency   spread         `json:"concurrency"`
	Looks         int            `json:"looks"`   // at the job's status, one a second
	Reasons       map[string]int `json:"reasons"` // how many of them found it throttled, by kind
	Examples      []string       `json:"examples,omitempty"`
}

type percentiles struct{ P50, P99, Most float64 }

func percentilesOf(values []float64) percentiles {
	if len(values) == 0 {
		return percentiles{}
	}
	slices.Sort(values)
	return percentiles{values[len(values)/2], values[len(values)*99/100], values[len(values)-1]}
}

// copyLive runs one migration while records come, and tells what they waited.
func (v *copyVenue) copyLive(ctx context.Context) (*liveCopy, error) {
	const job = "live"
	traffic, err := v.traffic(ctx)
	if err != nil {
		return nil, err
	}
	defer traffic()
	r := &liveCopy{Rate: v.live, Docs: v.docs, Reasons: map[string]int{}}
	pause(ctx, 15*time.Second) // for the consumer's own limits to settle
	var before, during, concurrency []float64
	for until := time.Now().Add(20 * time.Second); time.Now().Before(until) && ctx.Err() == nil; pause(ctx, 100*time.Millisecond) {
		if err := v.delay(ctx, &before); err != nil {
			return nil, err
		}
	}
	if _, err := v.prepareJob(ctx, job); err != nil {
		return nil, err
	}
	command := exec.CommandContext(ctx, v.sluice, "migrate", "run", "-c", v.config, "--job", job)
	command.Stderr = os.Stderr
	if err := command.Start(); err != nil {
		return nil, err
	}
	defer func() {
		_ = command.Process.Kill() // it has done what was looked at
		_ = command.Wait()         // killed
	}()
	var began, looked time.Time
	for deadline := time.Now().Add(v.budget); ; pause(ctx, 100*time.Millisecond) {
		if ctx.Err() != nil || time.Now().After(deadline) {
			return nil, errors.New("the copy does not come to its end")
		}
		if err := v.delay(ctx, &during); err != nil {
			return nil, err
		}
		if time.Since(looked) < time.Second {
			continue
		}
		looked = time.Now()
		var status struct {
			State    string `json:"state"`
			Line     string `json:"line"`
			Seen     int64  `json:"seen"`
			Progress struct {
				Concurrency int    `json:"concurrency"`
				Class       string `json:"class"`
				Reason      string `json:"reason"`
			} `json:"progress"`
			Throttle struct {
				Lag time.Duration `json:"lag"`
			} `json:"throttle"`
		}
		if err := getJSON(ctx, v.adminURL+"/v1/jobs/"+job, &status); err != nil {
			return nil, err
		}
		fmt.Fprintln(os.Stderr, status.Line)
		switch status.State {
		case "DUAL":
			during = nil
			continue
		case "BACKFILLING":
			if began.IsZero() {
				began = looked
			}
			r.Looks++
			concurrency = append(concurrency, float64(status.Progress.Concurrency))
			if p := status.Progress; p.Reason != "" {
				if r.Reasons[p.Class]++; r.Reasons[p.Class] == 1 {
					r.Examples = append(r.Examples, p.Reason)
				}
			}
			r.Limit = status.Throttle.Lag.Seconds()
			continue
		}
		r.Seconds = looked.Sub(began).Seconds()
		r.DocsPerS = float64(status.Seen) / max(1, r.Seconds)
		r.Before, r.Delay, r.Concurrency = percentilesOf(before), percentilesOf(during), spreadOf(concurrency)
		return r, nil
	}
}

// delay adds what the consumer says of the oldest record that it has not
// handled, in any partition.
func (v *copyVenue) delay(ctx context.Context, to *[]float64) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, v.adminURL+"/metrics", http.NoBody)
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	most := 0.0
	for lines := bufio.NewScanner(resp.Body); lines.Scan(); {
		if !strings.HasPrefix(lines.Text(), "sluice_consumer_lag_seconds{") {
			continue
		}
		_, text, _ := strings.Cut(lines.Text(), "} ")
		seconds, err := strconv.ParseFloat(text, 64)
		if err != nil {
			return fmt.Errorf("sluice_consumer_lag_seconds: %w", err)
		}
		most = max(most, seconds)
	}
	*to = append(*to, most)
	return nil
}

// traffic produces newer versions of documents of the index, evenly over time,
// until stop is called.
func (v *copyVenue) traffic(ctx context.Context) (stop func(), err error) {
	client, err := kgo.NewClient(kgo.SeedBrokers(v.kafka.address), kgo.DefaultProduceTopic(topicName), kgo.ProducerLinger(5*time.Millisecond))
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan struct{})
	go func() { // ends with ctx
		defer close(ended)
		random, sent, began := rand.New(rand.NewPCG(1, 1)), 0, time.Now()
		for ; ctx.Err() == nil; pause(ctx, 10*time.Millisecond) {
			for ; float64(sent) < time.Since(began).Seconds()*float64(v.live); sent++ {
				id := v.ids[random.IntN(len(v.ids))]
				customer, _, _ := strings.Cut(id, "/")
				client.Produce(ctx, &kgo.Record{Key: []byte(id), Value: fmt.Appendf(nil, `{"customer":%q,"live":%d}`, customer, sent)}, nil)
			}
		}
	}()
	return func() {
		cancel()
		<-ended
		client.Close()
	}, nil
}

func (r *liveCopy) table(w io.Writer) error {
	_, err := fmt.Fprintf(w, `%d documents copied in %.0f s (%.0f a second) beside %d records a second
delay of the oldest record: before the copy p50 %.2f s, p99 %.2f s, most %.2f s; during it p50 %.2f s, p99 %.2f s, most %.2f s; limit %.0f s
pages at once: median %.0f, %.0f to %.0f; throttled at %v of %d looks: %s
`, r.Docs, r.Seconds, r.DocsPerS, r.Rate, r.Before.P50, r.Before.P99, r.Before.Most, r.Delay.P50, r.Delay.P99, r.Delay.Most, r.Limit,
		r.Concurrency.Median, r.Concurrency.Least, r.Concurrency.Most, r.Reasons, r.Looks, strings.Join(r.Examples, "; "))
	return err
}
