package migrate

import (
	"net/http"
	"testing"
)

// The template of a cancelled job stays, since a late delete may still come. The
// next job on the index, whose names the same pattern might match, has one too.
func TestTheTemplateOfAnEarlierJobIsInNobodysWay(t *testing.T) {
	inBubble(t, func(w *world) {
		w.create(2)
		stop := w.consume()
		defer stop()
		_, err := w.m.Cancel(w.Context(), request(), nil)
		w.check(err)
		plan, next := w.plan(2), request()
		next.Job = jobName + "0" // whose names are matched by the other's pattern
		_, err = w.m.Create(w.Context(), next, plan)
		w.check(err)
		for _, job := range []string{jobName, next.Job} {
			w.call(http.MethodGet, "/_index_template/sluice-"+job, "")
		}
	})
}
