package migrate

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sluicehq/sluice/embedded"
)

// A migration in which everything that may go wrong goes wrong, again and again:
// runners are killed and stall while others stand by, requests are lost before
// and after they are carried out, land late, are turned away or cut, searches
// lose shards, nodes forget deletes, an operator pauses and throttles; and live
// records rewrite and delete all the while.
//
// SLUICE_MIGRATION_DOCUMENTS=2000000 makes it as large as a real one,
// SLUICE_MIGRATION_SEEDS=20 tries more of them.
func TestChaos(t *testing.T) {
	setting := func(name string, unset int) int {
		if n, err := strconv.Atoi(os.Getenv(name)); err == nil {
			return n
		}
		return unset
	}
	docs := setting("SLUICE_MIGRATION_DOCUMENTS", chaosDocuments)
	for seed := range uint64(setting("SLUICE_MIGRATION_SEEDS", chaosSeeds)) { //nolint:gosec // not negative
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			inBubble(t, func(w *world) { w.chaos(rand.New(rand.NewPCG(seed, 9)), docs) })
		})
	}
}

func (w *world) chaos(r *rand.Rand, docs int) {
	for from := 0; from < docs; from += 5000 {
		var b strings.Builder
		for i := from; i < min(docs, from+5000); i++ {
			fmt.Fprintf(&b, `{"index":{"_index":%q,"_id":"d%d"}}`+"\n"+`{"customer":"c%d","n":%d}`+"\n", source, i, i%50, -i)
		}
		w.call(http.MethodPost, "/_bulk", b.String())
	}
	w.create(8)
	live, end := context.WithCancel(w.Context())
	var background sync.WaitGroup
	seed := r.Uint64()
	background.Go(func() { w.log.run(live, rand.New(rand.NewPCG(seed, 1)), 50, docs) })

	var faults []*embedded.Injection
	runners := func(q *embedded.Request) bool { return q.Header.Get("User-Agent") == "sluice/job" }
	// Every answer takes its time, so that there is something to break.
	faults = append(faults, w.es.Inject(embedded.Rule{Fault: embedded.Fault{Delay: 250 * time.Millisecond}, Match: runners}))
	for _, fault := range []embedded.Fault{
		{Refuse: true},
		{Drop: true},
		{Delay: 8 * time.Second, Late: true},
		{Status: http.StatusServiceUnavailable},
		{Status: http.StatusTooManyRequests},
		{FailShards: true},
		{Cut: true, CutAfter: 80},
	} {
		faults = append(faults, w.es.Inject(embedded.Rule{Fault: fault, Share: 0.02, Match: runners}))
	}
	chaos, calm := context.WithCancel(w.Context())
	steps := r.Uint64()
	background.Go(func() {
		random := rand.New(rand.NewPCG(steps, 2))
		for sleep(chaos, time.Duration(1+random.IntN(5))*time.Second) == nil {
			switch random.IntN(5) {
			case 0, 1:
				w.es.Restart()
			case 2:
				_, err := w.m.Pause(chaos, request())
				w.surprise(err)
			default:
				_, err := w.m.Resume(chaos, request(), false)
				w.surprise(err)
				_, err = w.m.SetLimits(chaos, request(), map[string]string{"concurrency": strconv.Itoa(1 + random.IntN(4))})
				w.surprise(err)
			}
		}
	})
	_, err := w.m.DualWrite(w.Context(), request())
	w.check(err)

	kills := 0
	for w.job().State != Synced {
		life, kill := context.WithTimeout(w.Context(), time.Duration(2000+r.IntN(15_000))*time.Millisecond)
		var both sync.WaitGroup
		for n := range 2 {
			both.Go(func() {
				err := w.manager(fmt.Sprintf("runner %d of life %d", n, kills), w.es.Transport()).Work(life, jobName, nil)
				var moved *MovedError
				if err != nil && life.Err() == nil && !errors.As(err, &moved) && !errors.Is(err, errLeaseLost) && !errors.Is(err, errFenced) {
					w.surprise(err)
				}
			})
		}
		both.Wait()
		kill()
		if kills++; kills > 300 {
			w.Fatal("the job does not come to its end")
		}
	}
	calm()
	end()
	background.Wait()
	for _, fault := range faults {
		fault.Remove()
	}
	w.log.adopt()
	w.log.deliver()
	w.same()
	if n := w.tombstonesLeft(); n > 0 {
		w.Errorf("%d tombstones are left", n)
	}
	status, err := w.m.Status(w.Context(), jobName)
	w.check(err)
	if status.Seen < status.Backfill.Copied || status.Seen != status.Written+status.Newer+status.Failed || status.Failed > 0 {
		w.Errorf("seen %d = %d + %d + %d", status.Seen, status.Written, status.Newer, status.Failed)
	}
	if report := w.verify(Check{Level: L2, Full: true}); !report.Clean() {
		w.Errorf("%+v", report)
	}
	w.Logf("%d lives, %d documents seen, %d of them superseded, %d live records", kills, status.Seen, status.Newer, len(w.log.entries[0])*4)
}

// surprise notes an error that the faults do not explain.
func (w *world) surprise(err error) {
	if err != nil && !passing(err) && w.Context().Err() == nil {
		w.Error(err)
	}
}
