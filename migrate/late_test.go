package migrate

import (
	"fmt"
	"net/http"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluicehq/sluice/embedded"
)

// S19: documents that are written again whenever the scan comes near: it never
// meets them, and need not.
func TestS19UpdatedDuringTheScan(t *testing.T) {
	inBubble(t, func(w *world) {
		w.dual(600)
		release := make(chan struct{})
		held := w.es.Inject(embedded.Rule{API: "search", Index: source, Fault: embedded.Fault{Hold: release}, Match: func(q *embedded.Request) bool {
			return q.Query.Get("preference") != ""
		}})
		wait := w.start(w.m)
		synctest.Wait()
		if held.Hits() == 0 {
			w.Fatal("no search was held")
		}
		const busy = 40
		for round := range 3 {
			for i := range busy {
				w.log.put("d"+strconv.Itoa(i), "c"+strconv.Itoa(i%5), round)
			}
			w.log.deliver()
		}
		w.call(http.MethodPost, "/"+source+"/_refresh", "")
		held.Remove()
		close(release)
		stop := w.consume()
		w.check(wait())
		stop()
		w.same()
		status, err := w.m.Status(w.Context(), jobName)
		w.check(err)
		if status.Seen != 600-busy || status.Written != status.Seen {
			w.Errorf("seen %d, written %d: the scan met documents that it could leave to the consumers", status.Seen, status.Written)
		}
	})
}

// S44: an old request lands long after the delete that followed it. With hard
// deletes the document is back, on whichever side it was, and verify finds it;
// where deletes stay documents it is refused.
func TestS44LateDuplicate(t *testing.T) {
	for _, keeps := range []bool{false, true} {
		t.Run(fmt.Sprintf("tombstones %t", keeps), func(t *testing.T) {
			inBubble(t, func(w *world) {
				w.log.keeps, w.m.Tombstones = keeps, keeps
				w.synced(50)
				w.log.put("d7", "c2", 1)
				w.log.remove("d7", "c2")
				w.log.deliver()
				late := w.log.entries[partitionOf("d7")][0]
				if r := w.verify(Check{Level: L1}); !r.Clean() {
					w.Fatalf("before: %+v", r)
				}
				sleepFor(w, leastGC+time.Minute)
				w.log.write(w.log.tableAt(w.log.epoch[0]).Route([]byte(late.customer)).New, late, versionOf(0), false)
				r := w.verify(Check{Level: L1})
				if back := r.Classes[extraOnNew] == 1; back == keeps {
					w.Errorf("back: %t: %+v", back, r)
				}
			})
		})
	}
}

// S46: verify compares documents, not the order that searches give them.
func TestS46ScoresAreNotCompared(t *testing.T) {
	inBubble(t, func(w *world) {
		w.seed(100, 5)
		// One customer's documents are all that has a word: its weight is another one
		// in an index of its own.
		for i := range 20 {
			w.call(http.MethodPut, fmt.Sprintf("/%s/_doc/w%d", source, i), `{"customer":"c1","n":1,"text":"word"}`)
		}
		w.create(3)
		stop := w.consume()
		w.toSynced()
		stop()
		if r := w.verify(Check{Level: L2, Full: true}); !r.Clean() {
			w.Errorf("%+v", r)
		}
	})
}
