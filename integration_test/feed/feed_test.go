package feed

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
)

func TestRecordsKeepTheBytesOfEachElement(t *testing.T) {
	spec := Spec{Topic: "t", Key: []string{"/a", "/b/1", "/x~1y"}, Customer: "/b/0"}
	file := " [ {\"a\": 1.50,  \"b\":[\"ä\",null], \"x/y\":true} ,\n{\"x/y\":\"k\",\"a\":\"z\",\"b\":[2,3]}]\n"
	var got []string
	for record, err := range spec.Records(strings.NewReader(file)) {
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, fmt.Sprintf("%s %s=%s %s", record.Key, record.Headers[0].Key, record.Headers[0].Value, record.Value))
	}
	want := []string{
		`1.50/null/true customer=ä {"a": 1.50,  "b":["ä",null], "x/y":true}`,
		`z/3/k customer=2 {"x/y":"k","a":"z","b":[2,3]}`,
	}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("got  %q\nwant %q", got, want)
	}
}

func TestRecordsSayWhatIsWrong(t *testing.T) {
	for file, want := range map[string]string{
		`{"a":1}`:           "not a JSON array",
		``:                  "not a JSON array",
		`[{"a":1},{"b":1}]`: "element 1: nothing stands at /a",
		`[{"a":{}}]`:        "element 0: /a is not a scalar",
		`[{"a":1},{"a":`:    "element 1",
		`[{"a":1}`:          "the end of the array",
	} {
		var last error
		for _, err := range (Spec{Key: []string{"/a"}}).Records(strings.NewReader(file)) {
			last = err
		}
		if last == nil || !strings.Contains(last.Error(), want) {
			t.Errorf("%s: got %v, want %q", file, last, want)
		}
	}
}

func TestProduceCountsWhatWasAcknowledged(t *testing.T) {
	cluster := kfake.MustCluster(kfake.NumBrokers(1))
	defer cluster.Close()
	client, err := kgo.NewClient(kgo.SeedBrokers(cluster.ListenAddrs()...))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	admin := kadm.NewClient(client)
	for range 2 { // the second finds it there
		if err := CreateTopic(t.Context(), admin, "t", 3); err != nil {
			t.Fatal(err)
		}
	}
	if err := CreateTopic(t.Context(), admin, "t", 4); err == nil {
		t.Error("a topic with another number of partitions was accepted")
	}
	spec := Spec{Topic: "t", Key: []string{"/a"}}
	n, err := Produce(t.Context(), client, spec.Records(strings.NewReader(`[{"a":1},{"a":2},{"a":3}]`)))
	if n != 3 || err != nil {
		t.Errorf("got %d, %v, want 3 records", n, err)
	}
	n, err = Produce(t.Context(), client, spec.Records(strings.NewReader(`[{"a":1},{"b":2},{"a":3}]`)))
	if n > 1 || err == nil {
		t.Errorf("got %d, %v, want an error and nothing after it", n, err)
	}
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	if n, err = Produce(cancelled, client, spec.Records(strings.NewReader(`[{"a":1}]`))); n != 0 || err == nil {
		t.Errorf("got %d, %v after the context ended", n, err)
	}
}
