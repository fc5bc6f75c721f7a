package consumer

import (
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

// What is not committed and lies within an hour of the start of a log that has
// lost records is an alarm; where hours lie between them it is none.
func TestNearLogStart(t *testing.T) {
	for name, test := range map[string]struct {
		ages []time.Duration // of the records after those that were deleted
		near bool
	}{
		"within an hour": {[]time.Duration{5*time.Hour + 30*time.Minute, 5 * time.Hour}, true},
		"hours away":     {[]time.Duration{9 * time.Hour, 5 * time.Hour}, false},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, 1)
			write := func(age time.Duration) {
				r := &kgo.Record{Topic: testTopic, Key: []byte("k"), Value: []byte(`{}`), Timestamp: time.Now().Add(-age)}
				if err := w.client.ProduceSync(t.Context(), r).FirstErr(); err != nil {
					t.Fatal(err)
				}
			}
			write(20 * time.Hour)
			for _, age := range test.ages {
				write(age)
			}
			var lost, committed kadm.Offsets
			lost.Add(kadm.Offset{Topic: testTopic, At: 1})
			committed.Add(kadm.Offset{Topic: testTopic, At: 2, LeaderEpoch: -1})
			if _, err := w.adm.DeleteRecords(t.Context(), lost); err != nil {
				t.Fatal(err)
			}
			if _, err := w.adm.CommitOffsets(t.Context(), testGroup, committed); err != nil {
				t.Fatal(err)
			}
			m := w.start(nil)
			w.wait("the record to be held", func() bool { return m.sink.held() == 1 })
			m.readEnds(t.Context())
			m.watchStarts(t.Context())
			if s := m.Status().Partitions[0]; s.NearStart != test.near {
				t.Errorf("near the start: %v; %+v", s.NearStart, s)
			}
		})
	}
}
