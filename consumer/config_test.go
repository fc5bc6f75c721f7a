package consumer

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/kversion"

	"github.com/sluicehq/sluice/document"
	"github.com/sluicehq/sluice/memory"
)

func TestConfigErrors(t *testing.T) {
	w := newWorld(t, 1)
	for key, change := range map[string]change{
		"kafka.brokers":          func(c *Config, _ *Options) { c.Brokers = nil },
		"kafka.group_id":         func(c *Config, _ *Options) { c.GroupID = "" },
		"kafka.topics":           func(c *Config, _ *Options) { c.Topics = nil },
		"kafka.topics: \"dead\"": func(c *Config, o *Options) { c.Topics = []string{"dead"}; o.Exclude = []string{"dead"} },
		"kafka.topics: \"__x\"":  func(c *Config, _ *Options) { c.Topics = []string{"__x"} },
		"kafka.topics: \"^(\"":   func(c *Config, _ *Options) { c.Topics = []string{"^("} },
		"kafka.reset":            func(c *Config, _ *Options) { c.Reset = "yesterday" },
		"kafka.on_data_loss":     func(c *Config, _ *Options) { c.OnDataLoss = "shrug" },
		"kafka.isolation_level":  func(c *Config, _ *Options) { c.IsolationLevel = "serializable" },
		"kafka.group_protocol":   func(c *Config, _ *Options) { c.GroupProtocol = "raft" },
		"kafka.drain_timeout":    func(c *Config, _ *Options) { c.DrainTimeout = time.Minute },
		"kafka.sasl.mechanism":   func(c *Config, _ *Options) { c.SASL.Mechanism = "GSSAPI"; c.SASL.Username = "u" },
		"kafka.sasl.username":    func(c *Config, _ *Options) { c.SASL.Mechanism = "PLAIN" },
		"kafka.sasl.token_file":  func(c *Config, _ *Options) { c.SASL.Mechanism = "OAUTHBEARER" },
		"kafka.sasl.password": func(c *Config, _ *Options) {
			c.SASL = SASL{Mechanism: "PLAIN", Username: "u", PasswordFile: "/nowhere"}
		},
		"kafka.tls": func(c *Config, _ *Options) { c.TLS.Enabled = true; c.TLS.CAFile = "/nowhere" },
	} {
		cfg := w.config()
		o := Options{Budget: memory.New(1 << 20)}
		change(&cfg, &o)
		if _, err := New(cfg, o); err == nil || !strings.Contains(err.Error(), key) {
			t.Errorf("%s: %v", key, err)
		}
	}
	// All at once are all reported.
	_, err := New(Config{Reset: "x", OnDataLoss: "x"}, Options{Budget: memory.New(1)})
	for _, key := range []string{"brokers", "group_id", "topics", "reset", "on_data_loss"} {
		if err == nil || !strings.Contains(err.Error(), "kafka."+key) {
			t.Errorf("%s is missing in %v", key, err)
		}
	}
}

// A ^ topic never matches where rejected records go, nor __*; names beside it
// mean themselves only.
func TestRegexTopics(t *testing.T) {
	w := newWorld(t, 1)
	for _, name := range []string{"logs-a", "logs-dead", "logs-dead.parked", "eventsx"} {
		if err := w.kafka.CreateTopic(name, 1, nil); err != nil {
			t.Fatal(err)
		}
	}
	w.connect()
	for _, name := range []string{testTopic, "logs-a", "logs-dead", "logs-dead.parked", "eventsx"} {
		w.produceTo(name, 0, 3, func(int) (string, string) { return "k", "{}" })
	}
	w.topics = []string{"events", "^logs-"}
	m := w.start(atOnce, withRules(rules{version: document.VersionOffset}), func(_ *Config, o *Options) {
		o.Exclude = []string{"logs-dead", "logs-dead.parked"}
	})
	w.wait("the two topics", func() bool { return w.commits[tp{testTopic, 0}] == 3 && w.commits[tp{"logs-a", 0}] == 3 })
	if s := m.Status().Partitions; len(s) != 2 {
		t.Errorf("consumed are %+v", s)
	}
}

func TestCloseBeforeStartAndTwice(t *testing.T) {
	w := newWorld(t, 1)
	c, err := New(w.config(), Options{Budget: memory.New(1 << 20), Rules: func(string) Rules { return rules{} }})
	if err != nil {
		t.Fatal(err)
	}
	if s := c.Status(); s.Generation != -1 || len(s.Partitions) != 0 {
		t.Errorf("status before the start: %+v", s)
	}
	if c.Healthy() {
		t.Error("healthy before the start")
	}
	c.Close()
	c.Close()
	if err := c.Run(t.Context()); err == nil {
		t.Error("it ran after Close")
	}
	m := w.start(atOnce)
	w.wait("the start", m.running.Load)
	m.Close()
	m.Close()
	if err := m.end(); err != nil {
		t.Error(err)
	}
}

// No broker at the start: it waits, says so, and begins when there is one.
func TestNoBrokerAtStart(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port := l.Addr().(*net.TCPAddr).Port
	w := newWorld(t, 1)
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	m := w.start(atOnce, func(c *Config, _ *Options) { c.Brokers = []string{fmt.Sprintf("127.0.0.1:%d", port)} })
	w.wait("it to say that nothing is reached", func() bool { return m.Status().Trouble != "" })
	if !m.Alive() {
		t.Error("a consumer that waits for Kafka is not alive")
	}
	k, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.Ports(port), kfake.GroupMinSessionTimeout(time.Second), kfake.SeedTopics(1, testTopic))
	if err != nil {
		t.Fatal(err)
	}
	defer k.Close()
	w.wait("the assignment", func() bool { return m.state(0) == StateRunning })
	w.wait("the trouble to be over", func() bool { return m.Status().Trouble == "" })
	if err := m.end(); err != nil {
		t.Error(err)
	}
}

// A wrong password is tried again until the file holds the right one.
func TestPasswordFileIsReadAgain(t *testing.T) {
	for _, mechanism := range []string{"PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"} {
		t.Run(mechanism, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "password")
			if err := os.WriteFile(file, []byte("wrong"), 0o600); err != nil {
				t.Fatal(err)
			}
			k, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(1, testTopic), kfake.EnableSASL(), kfake.GroupMinSessionTimeout(time.Second), kfake.Superuser(mechanism, "me", "right"))
			if err != nil {
				t.Fatal(err)
			}
			defer k.Close()
			w := newWorld(t, 1)
			m := w.start(atOnce, func(c *Config, _ *Options) {
				c.Brokers = k.ListenAddrs()
				c.SASL = SASL{Mechanism: mechanism, Username: "me", PasswordFile: file}
			})
			w.wait("a refused attempt", func() bool { return m.Status().Trouble != "" })
			if s := m.Status().Trouble; strings.Contains(s, "wrong") {
				t.Errorf("the status shows the password: %s", s)
			}
			if err := os.WriteFile(file, []byte("right"), 0o600); err != nil {
				t.Fatal(err)
			}
			w.wait("the assignment", func() bool { return m.state(0) == StateRunning })
			if err := m.end(); err != nil {
				t.Error(err)
			}
		})
	}
}

// The queues are bounded by the budget, whatever the sink does and however far
// batches expand when they are decompressed, and go on when the sink does (V47).
func TestMemoryIsBounded(t *testing.T) {
	t.Parallel()
	random := make([]byte, 15_000)
	if _, err := rand.Read(random); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		"random":       base64.StdEncoding.EncodeToString(random),
		"compressible": strings.Repeat("a", 20_000),
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, 4)
			value := `{"x":"` + text + `"}`
			for p := range int32(4) {
				w.produceTo(testTopic, p, 500, func(int) (string, string) { return "k", value })
			}
			const limit = 16 << 20
			m := w.start(atOnce, func(_ *Config, o *Options) { o.Budget = memory.New(limit) })
			m.sink.setFull(true)
			w.wait("the pause", func() bool { return m.paused() == 4 && m.queued.Load() > limit/16 })
			peak := m.queued.Load()
			// What comes now came before the pause.
			ticker := time.NewTicker(time.Millisecond)
			defer ticker.Stop()
			for range 50 {
				<-ticker.C
				peak = max(peak, m.queued.Load())
			}
			// A quarter, and what one more poll brings: a quarter too.
			if peak > limit/2 {
				t.Errorf("%d bytes queued of a limit of %d", peak, limit)
			}
			if !m.Healthy() {
				t.Error("heartbeats stopped with the dispatcher")
			}
			m.sink.setFull(false)
			w.waitAllCommitted()
			if n := m.paused(); n != 0 {
				t.Errorf("%d partitions are paused with nothing to do", n)
			}
		})
	}
}

// One partition that is far behind, with others that have nothing to read, is
// never paused in the client: it would wait each time until the brokers have
// answered for the others.
func TestOneFarBehind(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 8)
	var paused atomic.Int64
	w.kafka.ControlKey(int16(kmsg.Fetch), func(kreq kmsg.Request) (kmsg.Response, error, bool) {
		w.kafka.KeepControl()
		for _, t := range kreq.(*kmsg.FetchRequest).ForgottenTopics {
			if slices.Contains(t.Partitions, 3) {
				paused.Add(1)
			}
		}
		return nil, nil, false
	})
	value := `{"x":"` + strings.Repeat("a", 4000) + `"}`
	w.produceTo(testTopic, 3, 10_000, func(i int) (string, string) { return strconv.Itoa(i), value })
	w.start(atOnce, func(c *Config, o *Options) {
		o.Budget = memory.New(32 << 20)
		c.Fetch.MaxWait = 500 * time.Millisecond
	})
	w.waitAllCommitted()
	if n := paused.Load(); n != 0 {
		t.Errorf("paused %d times", n)
	}
}

// Brokers learn from each fetch where the replica stands, so that they can send
// it to a follower of its own rack (KIP-392).
func TestRack(t *testing.T) {
	t.Parallel()
	for _, rack := range []string{"", "zone-b"} {
		w := newWorld(t, 1)
		var mu sync.Mutex
		seen := map[string]bool{}
		w.kafka.ControlKey(int16(kmsg.Fetch), func(kreq kmsg.Request) (kmsg.Response, error, bool) {
			w.kafka.KeepControl()
			mu.Lock()
			seen[kreq.(*kmsg.FetchRequest).Rack] = true
			mu.Unlock()
			return nil, nil, false
		})
		w.produce(0, 1)
		m := w.start(atOnce, func(c *Config, _ *Options) { c.Rack = rack })
		w.waitAllCommitted()
		if err := m.end(); err != nil {
			t.Error(err)
		}
		mu.Lock()
		if len(seen) != 1 || !seen[rack] {
			t.Errorf("kafka.rack is %q, the brokers were told %v", rack, seen)
		}
		mu.Unlock()
	}
}

// The client hears of the reasons that are one partition's; the poll loop goes
// on after the last of the others.
func TestPauses(t *testing.T) {
	p := &pausing{}
	ps := newPauses(p)
	a := &assignment{l: &ledger{topic: "t"}, id: 1}
	b := &assignment{l: &ledger{topic: "t"}, id: 2}
	want := func(step string, paused ...int32) {
		t.Helper()
		if got := fmt.Sprint(p.paused()); got != fmt.Sprint(paused) {
			t.Errorf("%s: paused %v, want %v", step, got, paused)
		}
	}
	ps.add(pauseStarting, a, b)
	want("new", 1, 2)
	ps.clear(pauseStarting, a)
	want("one started", 2)
	all := func(step string, everything bool, n int) {
		t.Helper()
		if got := ps.everything(); got != everything {
			t.Errorf("%s: everything is paused: %v", step, got)
		}
		if got := ps.count(); got != n {
			t.Errorf("%s: %d counted, want %d", step, got, n)
		}
	}
	ps.set(pauseFull, a)
	want("the client keeps what it has", 2)
	all("full", true, 2)
	ps.set(pauseHalted, a)
	ps.clear(pauseFull, a)
	want("still halted", 1, 2)
	all("not full any more", false, 2)
	ps.clear(pauseHalted|pauseStarting, a, b)
	want("all run")
	<-ps.resumed
	ps.setAll("memory", true)
	ps.setAll("commits", true)
	ps.set(pauseFull, b)
	want("the client keeps what it has")
	all("three reasons", true, 2)
	ps.setAll("memory", false)
	ps.setAll("commits", false)
	all("one reason", true, 2)
	if len(ps.resumed) != 0 {
		t.Error("resumed too early")
	}
	ps.remove(b)
	want("forgotten")
	all("forgotten", false, 0)
	if len(ps.resumed) != 1 {
		t.Error("nobody is told that it goes on")
	}
	ps.set(pauseFull, b)
	want("of no consequence any more")
}

// pausing remembers what is paused, as the client does.
type pausing struct{ set [8]bool }

func (p *pausing) PauseFetchPartitions(m map[string][]int32) map[string][]int32 {
	for _, n := range m["t"] {
		p.set[n] = true
	}
	return nil
}

func (p *pausing) ResumeFetchPartitions(m map[string][]int32) {
	for _, n := range m["t"] {
		p.set[n] = false
	}
}

func (p *pausing) paused() (ns []int32) {
	ns = []int32{}
	for n, on := range p.set {
		if on {
			ns = append(ns, int32(n))
		}
	}
	return ns
}

// Rights that were withdrawn: fetching stops after a while, with an alarm, and
// goes on when commits are taken again.
func TestCommitsDenied(t *testing.T) {
	w := newWorld(t, 1)
	w.produce(0, 10)
	m := w.start(atOnce)
	w.waitAllCommitted()
	f := w.kafka.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.OffsetCommit}, Err: kerr.GroupAuthorizationFailed, Count: -1})
	w.produce(0, 10)
	w.wait("the denial", func() bool { return m.Status().CommitClass == string(commitRights) })
	if n := m.paused(); n != 0 {
		t.Errorf("%d partitions paused at once", n)
	}
	m.commits.mu.Lock()
	m.commits.since = m.commits.since.Add(-commitDenied)
	m.commits.mu.Unlock()
	w.wait("the stop", func() bool { return m.paused() == 1 })
	f.Remove()
	w.waitAllCommitted()
	w.wait("the end of the stop", func() bool { return m.paused() == 0 })
}

// The gate: without heartbeats no request may start.
func TestHealthyFollowsHeartbeats(t *testing.T) {
	w := newWorld(t, 1)
	m := w.start(atOnce, func(c *Config, _ *Options) { c.SessionTimeout = 500 * time.Millisecond })
	w.wait("health", func() bool { return m.Healthy() })
	hang := make(chan struct{})
	w.kafka.ControlKey(int16(kmsg.Heartbeat), func(kmsg.Request) (kmsg.Response, error, bool) {
		w.kafka.KeepControl()
		w.kafka.SleepControl(func() { <-hang })
		return nil, nil, false
	})
	w.wait("the gate to close", func() bool { return !m.Healthy() })
	close(hang)
	w.wait("the gate to open", func() bool { return m.Healthy() })
}

// Invariant 7 at every scrape, while records flow; gauges of partitions that
// are not held disappear, counters stay.
func TestMetrics(t *testing.T) {
	w := newWorld(t, 2)
	m := w.start(shuffled(3))
	reg := prometheus.NewPedanticRegistry()
	reg.MustRegister(m.Consumer)
	scrape := func() (balanced bool, series map[string]float64) {
		families, err := reg.Gather()
		if err != nil {
			t.Fatal(err)
		}
		series = map[string]float64{}
		for _, f := range families {
			for _, s := range f.Metric {
				name := f.GetName()
				for _, l := range s.Label {
					name += " " + l.GetValue()
				}
				series[name] = s.GetCounter().GetValue() + s.GetGauge().GetValue()
			}
		}
		for _, p := range []string{"0", "1"} {
			sum := series["sluice_records_in_flight "+p+" events"]
			for _, o := range outcomeNames {
				sum += series["sluice_records_total "+o+" "+p+" events"]
			}
			if consumed := series["sluice_records_consumed_total "+p+" events"]; sum != consumed {
				t.Errorf("partition %s: consumed %v, accounted for %v", p, consumed, sum)
			}
		}
		return !t.Failed(), series
	}
	for range 40 {
		w.produce(0, 50)
		w.produce(1, 50)
		if ok, _ := scrape(); !ok {
			return
		}
	}
	w.waitAllCommitted()
	w.wait("the lag to be 0", func() bool { s, _ := m.partition(0); return s.Lag == 0 })
	_, series := scrape()
	if series["sluice_committed_offset 0 events"] != 2000 || series["sluice_consumer_lag 0 events"] != 0 {
		t.Errorf("%v", series)
	}
	if err := m.end(); err != nil {
		t.Fatal(err)
	}
	_, series = scrape()
	for name := range series {
		if strings.HasPrefix(name, "sluice_consumer_lag") || strings.HasPrefix(name, "sluice_queue") || strings.HasPrefix(name, "sluice_records_in_flight") {
			t.Errorf("%s is left after the end", name)
		}
	}
	if series["sluice_records_total indexed 0 events"] != 2000 {
		t.Errorf("the counters went with the partition: %v", series)
	}
	if problems, err := testutil.CollectAndLint(m.Consumer); err != nil || len(problems) != 0 {
		t.Errorf("%v %v", problems, err)
	}
}

// V49: data that is deleted already is no lag.
func TestLagBelowLogStart(t *testing.T) {
	a := &assignment{committed: 10, start: 50, end: 60}
	if n, _ := a.lag(time.Now()); n != 10 {
		t.Errorf("lag %d", n)
	}
	a.end = 5 // a stale high watermark
	if n, _ := a.lag(time.Now()); n != 0 {
		t.Errorf("lag %d", n)
	}
	a.end = -1
	if n, _ := a.lag(time.Now()); n != -1 {
		t.Errorf("lag %d", n)
	}
}

// V17: nothing moves for long; nothing happens.
func TestIdle(t *testing.T) {
	w := newWorld(t, 1)
	w.produce(0, 1)
	m := w.start(atOnce)
	w.waitAllCommitted()
	rebalances := m.counters.rebalances.Load()
	beats := w.kafka.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Heartbeat}, TopLevel: true, Count: -1, Observe: true})
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	w.wait("ten heartbeats", func() bool { return beats.Hits() >= 10 || ctx.Err() != nil })
	if n := m.counters.rebalances.Load(); n != rebalances {
		t.Errorf("%d rebalances without a reason", n-rebalances)
	}
	if !m.Alive() || !m.Healthy() {
		t.Error("an idle member is not alive and healthy")
	}
}

func TestConsumerGroupProtocol(t *testing.T) {
	modern := func(c *Config, _ *Options) { c.GroupProtocol = "consumer" }
	t.Run("4.4", func(t *testing.T) {
		w := newWorld(t, 3)
		for p := range int32(3) {
			w.produce(p, 100)
		}
		m := w.start(shuffled(2), modern)
		w.waitAllCommitted()
		if err := m.end(); err != nil {
			t.Fatal(err)
		}
	})
	t.Run("4.2", func(t *testing.T) {
		w := newWorld(t, 1, kfake.MaxVersions(kversion.V4_2_0()))
		m := w.start(atOnce, modern)
		select {
		case m.result = <-m.err:
			m.once.Do(func() {})
		case <-time.After(2 * time.Minute):
			t.Fatal("it goes on")
		}
		var bad *ConfigError
		if !errors.As(m.result, &bad) || bad.Key != "group_protocol" {
			t.Errorf("it ended with %v", m.result)
		}
	})
}
