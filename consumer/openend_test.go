package consumer

import (
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"
)

// With read_committed the log ends where the first open transaction begins:
// what lies behind is not there to be read, and no lag.
func TestOpenTransactionIsNoLag(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	w.produce(0, 5)
	open, err := kgo.NewClient(append(w.dial, kgo.SeedBrokers(w.kafka.ListenAddrs()...), kgo.TransactionalID("open"), kgo.RecordPartitioner(kgo.ManualPartitioner()))...)
	if err != nil {
		t.Fatal(err)
	}
	defer open.Close()
	if err := open.BeginTransaction(); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if err := open.ProduceSync(t.Context(), &kgo.Record{Topic: testTopic, Key: []byte("k"), Value: []byte(`{}`)}).FirstErr(); err != nil {
			t.Fatal(err)
		}
	}
	m := w.start(atOnce)
	w.wait("its commit", func() bool { s, _ := m.partition(0); return s.Committed == 5 })
	if s, ok := m.partition(0); !ok || s.End != 5 || s.Lag != 0 {
		t.Errorf("beside an open transaction: %+v, want end 5 and no lag", s)
	}
	if err := open.EndTransaction(t.Context(), kgo.TryAbort); err != nil {
		t.Fatal(err)
	}
}
