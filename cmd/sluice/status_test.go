package main

import (
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluicehq/sluice/admin"
)

// silent answers nothing.
type silent struct{}

func (silent) RoundTrip(r *http.Request) (*http.Response, error) {
	<-r.Context().Done()
	return nil, r.Context().Err()
}

// A replica reads the migrations from Elasticsearch: where that is silent, the
// rest of a status must not wait for it.
func TestStatusDoesNotWaitForMigrations(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := &adminClient{urls: []string{"http://a", "http://b"}, http: &http.Client{Transport: silent{}}}
		began := time.Now()
		if jobs := askJobs(t.Context(), client); jobs != nil {
			t.Errorf("jobs %v of replicas that do not answer", jobs)
		}
		if took := time.Since(began); took > jobsTimeout {
			t.Errorf("asking took %v, more than %v", took, jobsTimeout)
		}
	})
}

func TestStatusSaysWhatStands(t *testing.T) {
	for _, c := range []struct {
		health admin.Health
		want   string
	}{
		{admin.Health{State: admin.Waiting}, "r: records do not flow everywhere: waiting for Elasticsearch"},
		{admin.Health{State: admin.Running, Held: make([]admin.HeldTarget, 2)}, "r: records do not flow everywhere: running, 2 held targets"},
		{
			admin.Health{State: admin.Running, Halted: make([]admin.HaltedPartition, 1), Routing: &admin.Routing{Trouble: "the table stays"}},
			"r: records do not flow everywhere: running, 1 halted partitions, the table stays",
		},
	} {
		s := &statusSum{Replicas: []replicaStatus{{URL: "r", Health: c.health}}}
		if err := s.trouble(); err == nil || err.Error() != c.want {
			t.Errorf("trouble is %v, want %s", err, c.want)
		}
	}
	if err := (&statusSum{Replicas: []replicaStatus{{Health: admin.Health{State: admin.Running}}}}).trouble(); err != nil {
		t.Errorf("trouble is %v where all flows", err)
	}
}
