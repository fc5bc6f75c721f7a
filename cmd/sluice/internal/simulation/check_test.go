//go:build synctests

package simulation

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/sluicehq/sluice/cmd/sluice/internal/app"
	"github.com/sluicehq/sluice/consumer"
)

// check compares the end with what was planned. It knows the records from the
// plan and shares no code with the program.
func (w *world) check(ctx context.Context) {
	letters, err := w.kafka.ReadAll(ctx, deadLetters)
	if err != nil {
		w.fail("reading the dead letters: %v", err)
		return
	}
	w.checkLetters(letters)
	aside := []string{deadLetters}
	if w.s.cfg.parks {
		aside = append(aside, app.ParkedTopic(deadLetters))
	}
	if err := w.oracle.ReadLetters(ctx, w.kafka, aside...); err != nil {
		w.fail("reading the dead letters and parked records: %v", err)
	}
	w.checkCommits()
	w.checkFold()
}

// checkCommits reports what the oracle found.
func (w *world) checkCommits() {
	for i, v := range w.oracle.Violations() {
		if i == 5 {
			w.fail("... and %d more violations", len(w.oracle.Violations())-i)
			break
		}
		w.fail("at %v: %s", v.At.Sub(w.start), v)
	}
}

// checkLetters: only bad records are dead letters, as they were, and each bad
// record is one, unless a newer record of its key made it stale.
func (w *world) checkLetters(letters []*kgo.Record) {
	have := map[place]bool{}
	for _, l := range letters {
		headers := map[string]string{}
		var own []kgo.RecordHeader
		for _, h := range l.Headers {
			if strings.HasPrefix(h.Key, "sluice.") {
				headers[h.Key] = string(h.Value)
			} else {
				own = append(own, h)
			}
		}
		partition, err1 := strconv.ParseInt(headers["sluice.partition"], 10, 32)
		offset, err2 := strconv.ParseInt(headers["sluice.offset"], 10, 64)
		at := place{headers["sluice.topic"], int32(partition), offset}
		p := w.byPlace[at]
		switch {
		case err1 != nil || err2 != nil || p == nil:
			w.fail("a dead letter names the record %v, which does not exist", at)
		case p.fate != bad:
			w.fail("the good record %v is a dead letter: %s %s", at, headers["sluice.type"], headers["sluice.reason"])
		case !bytes.Equal(l.Key, p.Key) || !bytes.Equal(l.Value, p.Value) || (l.Value == nil) != (p.Value == nil) || !equalHeaders(own, p.Headers):
			w.fail("the dead letter of %v differs from its record", at)
		default:
			have[at] = true
		}
	}
	for at, p := range w.byPlace {
		if p.fate != bad || have[at] {
			continue
		}
		if version, ok := w.es.Peak(p.index, p.doc); !ok || version <= w.s.version(p) {
			w.fail("the bad record %v is no dead letter", at)
		}
	}
}

func equalHeaders(a, b []kgo.RecordHeader) bool {
	return slices.EqualFunc(a, b, func(x, y kgo.RecordHeader) bool {
		return x.Key == y.Key && bytes.Equal(x.Value, y.Value)
	})
}

// checkFold: the indices hold the newest record of each id that counts, and
// nothing else.
func (w *world) checkFold() {
	type id struct{ index, doc string }
	want := map[id]*planned{}
	older := map[id][]*planned{}
	for _, b := range w.s.batches {
		if b.abort {
			continue
		}
		for _, p := range b.records {
			if p.fate == bad || p.fate == ignored {
				continue
			}
			k := id{p.index, p.doc}
			if last := want[k]; last != nil {
				older[k] = append(older[k], last)
			}
			want[k] = p
		}
	}
	for _, t := range w.s.topics {
		for tenant := range t.tenants {
			index := fmt.Sprintf("i-%s-%d", t.name, tenant)
			for d := range w.es.Docs(index) {
				k := id{index, d.ID}
				p := want[k]
				delete(want, k)
				tombstone := bytes.HasPrefix(d.Source, []byte(`{"_sluice_deleted":true`))
				switch {
				case p == nil:
					w.fail("phantom: %s/%s", index, d.ID)
				case p.fate == deleted && w.s.cfg.tombstones && tombstone:
				case p.fate == deleted:
					w.fail("resurrected: %s/%s holds %.60s, deleted by %s/%d/%d", index, d.ID, d.Source, p.Topic, p.Partition, p.Offset)
				case string(d.Source) != p.document():
					kind := "altered"
					if slices.ContainsFunc(older[k], func(o *planned) bool { return o.document() == string(d.Source) }) {
						kind = "stale"
					}
					w.fail("%s: %s/%s holds %.60s, want that of %s/%d/%d", kind, index, d.ID, d.Source, p.Topic, p.Partition, p.Offset)
				case len(p.Key) > 0 && d.Version != w.s.version(p):
					w.fail("%s/%s has version %d, want %d", index, d.ID, d.Version, w.s.version(p))
				}
			}
		}
	}
	for k, p := range want {
		if p.fate == stored {
			w.fail("lost: %s/%s of %s/%d/%d", k.index, k.doc, p.Topic, p.Partition, p.Offset)
		} else if w.s.cfg.tombstones {
			w.fail("lost: the tombstone %s/%s of %s/%d/%d", k.index, k.doc, p.Topic, p.Partition, p.Offset)
		}
	}
}

// checkBooks checks the ledgers of the partitions that a running member holds:
// they are exact at any moment.
func (w *world) checkBooks() {
	for _, m := range w.members {
		if m == nil {
			continue
		}
		for _, p := range m.app.Status().(app.Status).Consumer.Partitions {
			if l := p.Ledger; l.Consumed != sum(l) {
				w.fail("member %d, %s/%d: the ledger does not balance: %+v", m.n, p.Topic, p.Partition, l)
			}
		}
	}
}

func sum(l consumer.LedgerStatus) uint64 {
	return l.Indexed + l.Deleted + l.Stale + l.DeadLettered + l.Parked + l.Ignored + l.Abandoned + l.InFlight
}

// checkLedger looks at the metrics of a member that has ended: consumed is the
// sum of the outcomes, nothing is in flight, all memory was given back, and
// nothing happened that must not.
func (w *world) checkLedger(m *member) {
	families, err := m.metrics.Gather()
	if err != nil {
		w.fail("metrics of member %d: %v", m.n, err)
		return
	}
	consumed, ended := map[place]float64{}, map[place]float64{}
	for _, f := range families {
		for _, metric := range f.GetMetric() {
			var at place
			for _, l := range metric.GetLabel() {
				switch l.GetName() {
				case "topic":
					at.topic = l.GetValue()
				case "partition":
					n, _ := strconv.Atoi(l.GetValue()) // the program wrote it
					at.partition = int32(n)
				}
			}
			switch f.GetName() {
			case "sluice_records_consumed_total":
				consumed[at] += metric.GetCounter().GetValue()
			case "sluice_records_total":
				ended[at] += metric.GetCounter().GetValue()
				for _, l := range metric.GetLabel() {
					if l.GetValue() == "parked" {
						w.parkedRecords += int(metric.GetCounter().GetValue())
					}
				}
			case "sluice_records_in_flight":
				if n := metric.GetGauge().GetValue(); n != 0 {
					w.fail("member %d has ended with %v records of %v in flight", m.n, n, at)
				}
			case "sluice_memory_used_bytes":
				if n := metric.GetGauge().GetValue(); n != 0 {
					w.fail("member %d has ended with %v bytes of its budget taken", m.n, n)
				}
			case "sluice_internal_errors_total":
				if n := metric.GetCounter().GetValue(); n != 0 {
					w.fail("member %d counts %v internal errors", m.n, n)
				}
			case "sluice_rebalances_total":
				w.rebalances += int(metric.GetCounter().GetValue())
			}
		}
	}
	for at, n := range consumed {
		if ended[at] != n {
			w.fail("member %d, %s/%d: consumed %v records, of which %v have ended", m.n, at.topic, at.partition, n, ended[at])
		}
	}
}

// status is what the members say of themselves, for a person.
func (w *world) status() string {
	var b strings.Builder
	for _, m := range w.members {
		if m == nil {
			continue
		}
		if m.ended() {
			fmt.Fprintf(&b, "member %d has ended: %v\n", m.n, m.err)
			continue
		}
		text, err := json.Marshal(m.app.Status())
		fmt.Fprintf(&b, "member %d: %s %v\n", m.n, text, err)
		held, err := json.Marshal(m.app.Health())
		fmt.Fprintf(&b, "  health: %s %v\n", held, err)
	}
	if g := w.kafka.GroupInfo(group); g != nil {
		fmt.Fprintf(&b, "group %s, generation %d:", g.State, g.Epoch)
		for _, m := range g.Members {
			fmt.Fprintf(&b, " %s %v", m.ClientID, m.Assignment)
		}
	}
	return b.String()
}
