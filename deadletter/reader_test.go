package deadletter

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

func (f *fixture) produce(records ...*kgo.Record) {
	f.Helper()
	client, err := kgo.NewClient(append(f.opts, kgo.DefaultProduceTopic(topic), kgo.RecordPartitioner(kgo.ManualPartitioner()))...)
	if err != nil {
		f.Fatal(err)
	}
	defer client.Close()
	if err := client.ProduceSync(f.Context(), records...).FirstErr(); err != nil {
		f.Fatal(err)
	}
}

func stored(l Letter, at time.Time, partition int32) *kgo.Record {
	return &kgo.Record{Key: l.Key, Value: l.Value, Headers: l.headers(), Timestamp: at, Partition: partition}
}

func TestListFilters(t *testing.T) {
	f := start(t, Config{}, false, nil)
	base := time.UnixMilli(1_700_000_000_000)
	var records []*kgo.Record
	for i := range 12 {
		l := example(int64(i))
		l.Topic = fmt.Sprintf("topic-%d", i%2)
		l.Type = fmt.Sprintf("type-%d", i%3)
		records = append(records, stored(l, base.Add(time.Duration(i)*time.Hour), int32(i%3)))
	}
	f.produce(records...)
	for name, tt := range map[string]struct {
		filter Filter
		want   int
	}{
		"all":   {Filter{}, 12},
		"topic": {Filter{Topic: "topic-1"}, 6},
		"type":  {Filter{Type: "type-2"}, 4},
		"both":  {Filter{Topic: "topic-1", Type: "type-2"}, 2},
		"since": {Filter{Since: base.Add(10 * time.Hour)}, 2},
		"until": {Filter{Until: base.Add(10 * time.Hour)}, 10},
		"none":  {Filter{Topic: "x"}, 0},
	} {
		if got := f.list(tt.filter); len(got) != tt.want {
			t.Errorf("%s: %d letters, want %d", name, len(got), tt.want)
		}
	}
	for _, err := range NewReader(topic, f.opts...).List(t.Context(), Filter{}) {
		if err != nil {
			t.Error(err)
		}
		break // a list may be left
	}
}

func TestListEmptyAndMissing(t *testing.T) {
	f := start(t, Config{}, false, nil)
	if got := f.list(Filter{}); got != nil {
		t.Errorf("%v", got)
	}
	for _, err := range NewReader("nowhere", f.opts...).List(t.Context(), Filter{}) {
		if !errors.Is(err, ErrTopicMissing) {
			t.Error(err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	n := 0
	for _, err := range NewReader(topic, f.opts...).List(ctx, Filter{}) {
		n++
		if err == nil || IsNotLetter(err) {
			t.Error(err)
		}
	}
	if n != 1 {
		t.Errorf("%d answers under a cancelled context", n)
	}
}

// A letter can itself be dead-lettered; strangers and torn letters are named
// and passed over; parts that were written twice count once.
func TestListUnusual(t *testing.T) {
	f := start(t, Config{}, false, nil)
	nested := example(1)
	nested.Headers = (&Letter{Topic: "inner", Offset: 99}).headers()
	part := func(l Letter, value, chunk string) *kgo.Record {
		r := stored(l, time.Now(), 0)
		r.Value = []byte(value)
		r.Headers = append(r.Headers, kgo.RecordHeader{Key: headerChunk, Value: []byte(chunk)})
		return r
	}
	broken := stored(example(6), time.Now(), 0)
	broken.Headers[len(broken.Headers)-11].Value = []byte("x") // sluice.offset
	f.produce(
		stored(nested, time.Now(), 0),
		&kgo.Record{Value: []byte("a stranger's")},
		part(example(2), "a", "1/3"), part(example(2), "b", "2/3"), part(example(2), "b", "2/3"), part(example(2), "c", "3/3"), part(example(2), "a", "1/3"),
		part(example(3), "a", "1/2"),
		part(example(4), "a", "3/2"), part(example(5), "a", "1/99999999"),
		broken,
	)
	values := map[int64]string{}
	strangers := map[int64]bool{}
	for l, err := range NewReader(topic, f.opts...).List(t.Context(), Filter{}) {
		switch {
		case IsNotLetter(err):
			strangers[l.Stored.Offset] = true
		case err != nil:
			t.Fatal(err)
		default:
			values[l.Offset] += string(l.Value)
			if l.Offset == 1 && (len(l.Headers) != 13 || l.Topic != "events") {
				t.Errorf("nested: %+v", l)
			}
		}
	}
	if len(values) != 2 || values[2] != "abc" {
		t.Errorf("letters: %v", values)
	}
	if len(strangers) != 5 || !strangers[1] || !strangers[7] || !strangers[8] || !strangers[9] || !strangers[10] {
		t.Errorf("not letters: %v", strangers)
	}
}
