package scenarios

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kversion"

	"github.com/sluicehq/sluice/cmd/sluice/internal/app"
	"github.com/sluicehq/sluice/config"
	"github.com/sluicehq/sluice/embedded"
)

// named gives a program a name that its requests carry, so that a fault can
// fall on one program's only.
func named(name string) func(*config.Config, *app.Options) {
	return func(_ *config.Config, o *app.Options) { o.Version = name }
}

// of matches the bulk requests of a named program.
func of(name string) func(*embedded.Request) bool {
	return func(r *embedded.Request) bool {
		return r.API() == "bulk" && strings.Contains(r.Header.Get("User-Agent"), name)
	}
}

// load produces records all the time, each key in turn, until the returned
// function is called.
func (w *world) load(keys int) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		for n := 0; ctx.Err() == nil; n += 20 {
			batch := make([]*kgo.Record, 20)
			for i := range batch {
				batch[i] = record(fmt.Sprintf("k%d", (n+i)%keys), n+i)
			}
			w.produce(batch...)
			select {
			case <-ctx.Done():
			case <-time.After(5 * time.Millisecond): // the load's pace
			}
		}
	}()
	return func() { cancel(); <-done }
}

// A member that loses partitions with work in flight commits nothing of them
// afterwards: the commit never goes down, and no more is read again than what
// was in flight.
func TestV03_LostPartitionIsNotCommitted(t *testing.T) {
	t.Parallel()
	w := newWorld(t, worldOptions{partitions: 6})
	const yaml = "kafka: {drain_timeout: 300ms}\nelasticsearch: {request_timeout: 5s}"
	first, second := w.start(yaml, named("first")), w.start(yaml, named("second"))
	first.awaitHeld(3)
	second.awaitHeld(3)
	w.produce(records(300)...)
	w.awaitDone(first, second)

	release := make(chan struct{})
	// Late: the node carries out what the first has given up.
	held := w.es.Inject(embedded.Rule{Fault: embedded.Fault{Hold: release, Late: true}, Match: of("first")})
	w.produce(records(600)...)
	w.await("bulks in flight", func() error {
		if held.Hits() == 0 || w.lag(topic) == 0 {
			return errors.New("none")
		}
		return nil
	}, first, second)
	inFlight := 0
	w.await("the second to be done", func() error {
		inFlight = int(first.sum("sluice_records_in_flight"))
		if rest := w.lag(topic); rest != int64(inFlight) {
			return fmt.Errorf("lag %d, %d in flight with the first", rest, inFlight)
		}
		return nil
	}, first, second)

	third := w.start(yaml, named("third"))
	third.awaitHeld(2)
	first.awaitHeld(2)
	held.Remove()
	close(release) // the answers come, too late for what the first has lost
	w.awaitDone(first, second, third)
	if back := w.oracle.Backwards(); len(back) != 0 {
		t.Errorf("commits went backwards: %v", back)
	}
	again := first.sum("sluice_records_consumed_total") + second.sum("sluice_records_consumed_total") + third.sum("sluice_records_consumed_total") - 900
	if again > float64(inFlight) {
		t.Errorf("%v records were read again, %d were in flight", again, inFlight)
	}
	w.checkFold()
}

// Members join and leave 20 times under load: commits resume by themselves
// each time, the lag goes to 0, and no clean change of owner reads anything
// twice.
func TestV06_JoinAndLeave(t *testing.T) {
	t.Parallel()
	w := newWorld(t, worldOptions{partitions: 6})
	stay := w.start("")
	stay.awaitHeld(6)
	stop := w.load(200)
	defer stop()
	var left float64
	for range 10 {
		guest := w.start("")
		guest.awaitHeld(3)
		before := guest.outcomes("indexed")
		w.await("the guest to work", func() error {
			if guest.outcomes("indexed") == before {
				return errors.New("it does nothing")
			}
			return nil
		}, stay, guest)
		if err := guest.stop(); err != nil {
			t.Fatal(err)
		}
		left += guest.sum("sluice_records_consumed_total") - float64(guest.outcomes("abandoned"))
		stay.awaitHeld(6)
	}
	stop()
	w.awaitDone(stay)
	w.checkFold()
	if n := left + stay.sum("sluice_records_consumed_total") - float64(stay.outcomes("abandoned")); int(n) != len(w.log) {
		t.Errorf("%v records were handled, %d were produced", n, len(w.log))
	}
	if back := w.oracle.Backwards(); len(back) != 0 {
		t.Errorf("commits went backwards: %v", back)
	}
}

// One of three members stops: at most two generations, the others keep what
// they have, and it takes less than 5 s until all goes on.
func TestV07_OneLeaves(t *testing.T) {
	t.Parallel()
	w := newWorld(t, worldOptions{partitions: 12})
	a, b, c := w.start(""), w.start(""), w.start("")
	for _, p := range []*program{a, b, c} {
		p.awaitHeld(4)
	}
	epoch := w.kafka.GroupInfo(group).Epoch
	released := strings.Count(a.log.String()+b.log.String(), "partitions released")
	stop := w.load(200)
	defer stop()
	began := time.Now()
	if err := c.stop(); err != nil {
		t.Fatal(err)
	}
	a.awaitHeld(6)
	b.awaitHeld(6)
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("it took %v", took)
	}
	stop()
	w.awaitDone(a, b)
	if n := w.kafka.GroupInfo(group).Epoch - epoch; n > 2 {
		t.Errorf("%d generations", n)
	}
	if n := strings.Count(a.log.String()+b.log.String(), "partitions released"); n != released {
		t.Errorf("those who stayed released partitions %d times", n-released)
	}
	w.checkFold()
}

// Two processes with one static member id: the fenced one stops reading and
// ends with a plain reason and a non-zero exit code; the other goes on, and
// they do not fence each other in turn.
func TestV16_StaticMemberTwice(t *testing.T) {
	t.Parallel()
	w := newWorld(t, worldOptions{})
	const yaml = "kafka: {instance_id: replica-1}"
	elder := w.launch(yaml)
	w.produce(records(10)...)
	w.awaitDone()
	younger := w.start(yaml)
	select {
	case <-elder.exited:
	case <-time.After(patience):
		t.Fatal("the fenced one goes on")
	}
	if code := elder.cmd.ProcessState.ExitCode(); code != 1 {
		t.Errorf("exit code %d", code)
	}
	if said := elder.log.String(); !strings.Contains(said, "another process has taken over this kafka.instance_id: give each replica its own") {
		t.Errorf("it does not say why: %s", elder.log.tail())
	}
	w.produce(records(10)...)
	w.awaitDone(younger)
	younger.awaitHeld(1)
}

// The consumer protocol (KIP-848): members share the partitions, one that dies
// is replaced, and all records arrive, none committed too early.
func TestConsumerProtocol(t *testing.T) {
	t.Parallel()
	w := newWorld(t, worldOptions{partitions: 6, kafka: []kfake.Opt{kfake.BrokerConfigs(map[string]string{
		"group.consumer.session.timeout.ms": "1500", "group.consumer.heartbeat.interval.ms": "100",
		"group.consumer.min.session.timeout.ms": "1000", "group.consumer.min.heartbeat.interval.ms": "50",
	})}})
	const yaml = "kafka: {group_protocol: consumer, session_timeout: 3s}"
	first := w.start(yaml)
	first.awaitHeld(6)
	stop := w.load(200)
	defer stop()
	second := w.start(yaml)
	second.awaitHeld(3)
	first.awaitHeld(3)
	w.await("the second to work", func() error {
		if second.outcomes("indexed") == 0 {
			return errors.New("it does nothing")
		}
		return nil
	}, first, second)
	if groups, err := w.admin.DescribeConsumerGroups(t.Context(), group); err != nil || len(groups[group].Members) != 2 {
		t.Errorf("the group is %+v, %v: want two members of the consumer protocol", groups[group], err)
	}
	second.kill()
	first.awaitHeld(6)
	stop()
	w.awaitDone(first)
	w.checkFold()
	if back := w.oracle.Backwards(); len(back) != 0 {
		t.Errorf("commits went backwards: %v", back)
	}
	// An operator's commands see the group too.
	if code, said := w.sluice("", "generation", "raise", "--topic", topic); code != 75 || !strings.Contains(said, "g (1 members)") {
		t.Errorf("a raise beside a member: exit code %d: %s", code, said)
	}
	if err := first.stop(); err != nil {
		t.Fatal(err)
	}
	w.raise("", topic)
}

// Brokers before 4.3 fail commits under the consumer protocol: it is refused,
// and says what to do.
func TestConsumerProtocol_OldBroker(t *testing.T) {
	t.Parallel()
	w := newWorld(t, worldOptions{kafka: []kfake.Opt{kfake.MaxVersions(kversion.V4_2_0())}})
	p := w.launch("kafka: {group_protocol: consumer}")
	select {
	case <-p.exited:
	case <-time.After(patience):
		t.Fatal("it runs")
	}
	if code := p.cmd.ProcessState.ExitCode(); code == 0 {
		t.Error("exit code 0")
	}
	if said := p.log.String(); !strings.Contains(said, "kafka.group_protocol: consumer needs Kafka 4.3") || !strings.Contains(said, "use classic") {
		t.Errorf("it does not say why: %s", p.log.tail())
	}
}
