package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"math"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
)

// limiterResults are the bars of the limiter of requests in flight, held
// against a real Elasticsearch and against simulated servers.
type limiterResults struct {
	Far       farResult         `json:"far"`
	Bare      []rateResult      `json:"bare"`
	Refusing  []rateResult      `json:"refusing"`
	Simulated []simulatedServer `json:"simulated"`
}

// farResult is a run against a node behind a proxy that makes each bulk request
// take a second and serves 16 at once; for 30 s each takes five.
type farResult struct {
	RoundTrip   float64   `json:"round_trip_s"`
	To16        float64   `json:"round_trips_to_16"` // 0: never
	Steady      float64   `json:"requests_per_s"`    // before the trouble
	OfBest      float64   `json:"of_best"`           // relative to 16 a second, more than which the proxy does not serve
	Swing       float64   `json:"swing"`             // most that a window of ten round trips was off
	After       float64   `json:"after"`             // rate from the 10th round trip after the trouble, relative to before
	AfterWithin float64   `json:"after_within"`      // rate in the ten round trips after the trouble, likewise
	InFlight    []float64 `json:"in_flight"`         // most of each second
	Rate        []float64 `json:"rate"`              // requests that ended in each second
}

// rateResult is a fixed limit, or Sluice's own, against a node.
type rateResult struct {
	Limit    int     `json:"limit"` // 0: Sluice's own
	DocsPerS float64 `json:"docs_per_s"`
	Refused  float64 `json:"refused"`   // share of requests with 429s
	InFlight float64 `json:"in_flight"` // the median
	Round    int     `json:"round"`
}

// simulatedServer is what the simulation of the tests says of one server.
type simulatedServer struct {
	Server  string             `json:"server"`
	OfBest  map[string]float64 `json:"percent_of_best"` // by rule
	Refused map[string]float64 `json:"percent_refused"`
}

// The phases of the run against the far node.
const (
	farTrip    = time.Second
	farSlots   = 16
	farSettle  = 20 * time.Second // what is steady begins
	farTrouble = 100 * time.Second
	farRepair  = 130 * time.Second
	farEnd     = 170 * time.Second
)

// Requests to the far node are small, so that the machine is no limit.
const farFlush = "{flush_bytes: 64KiB, flush_documents: 100}"

// A rate is measured for a while, after a while; Sluice's own limit is found in
// the latter.
const (
	rateSettle = 10 * time.Second
	rateWindow = 10 * time.Second
	rateRounds = 3 // the first warms the node up and does not count
)

func limiter(ctx context.Context, args []string) error {
	fs := flag.NewFlagSet("limiter", flag.ContinueOnError)
	var o options
	var i images
	var t topic
	o.flags(fs, "sluice")
	i.flags(fs)
	t.flags(fs)
	if err := fs.Parse(args); err != nil {
		return err
	}
	end, err := o.prepare()
	if err != nil {
		return err
	}
	defer end()
	result := newReport(fs)
	result.Limiter = new(limiterResults)
	if result.Limiter.Simulated, err = simulate(ctx); err != nil {
		return err
	}
	var kafka broker
	source, err := startChild(ctx, &kafka, o.self, append([]string{"kfakesrv"}, t.args()...)...)
	if err != nil {
		return fmt.Errorf("filling a topic: %w", err)
	}
	defer source.stop()

	lab := lab{options: o, brokers: kafka.Brokers}
	if err := lab.with(ctx, i.elasticsearch, nil, func() error {
		if result.Limiter.Far, err = lab.far(ctx); err != nil {
			return err
		}
		result.Limiter.Bare, err = lab.rates(ctx, 1, 2, 4, 8, 16)
		return errors.Join(err, result.write(o.out))
	}); err != nil {
		return err
	}
	// A node that does two requests at a time and lets two more wait.
	refusing := map[string]string{"thread_pool.write.size": "2", "thread_pool.write.queue_size": "2"}
	if err := lab.with(ctx, i.elasticsearch, refusing, func() error {
		result.Limiter.Refusing, err = lab.rates(ctx, 2, 3, 4, 8)
		return err
	}); err != nil {
		return err
	}
	if err := result.write(o.out); err != nil {
		return err
	}
	return result.Limiter.table(os.Stdout)
}

// lab runs Sluice before one node at a time.
type lab struct {
	options
	brokers []string
	node    *server
	runs    int
}

// with calls f while a node with these settings runs.
func (l *lab) with(ctx context.Context, image string, settings map[string]string, f func() error) error {
	var err error
	if l.node, err = startElasticsearch(ctx, image, settings); err != nil {
		return err
	}
	defer l.node.stop()
	return f()
}

// run lets Sluice write to the node through a proxy, with more configuration,
// while f watches.
func (l *lab) run(ctx context.Context, slots int, more string, f func(p *proxy, index string) error) error {
	url := "http://" + l.node.address
	l.runs++
	group := fmt.Sprintf("limiter-%d", l.runs)
	if err := createIndex(ctx, url, group); err != nil {
		return err
	}
	p, err := newProxy(url, slots)
	if err != nil {
		return err
	}
	front := httptest.NewServer(p)
	defer front.Close()
	place := place{Brokers: l.brokers, Sink: front.URL, Index: group, Group: group}
	commands, err := sluiceProgram(l.sluice, "sluice", more).commands(ctx, place, scenario{Gzip: 1}.defaults(), l.temp)
	if err != nil {
		return err
	}
	processes, err := startProcesses(commands)
	if err != nil {
		return err
	}
	defer processes.kill() // there is nothing to finish
	if err := f(p, group); err != nil {
		return fmt.Errorf("%w%s", err, outputOf(filepath.Join(l.temp, group+"-0", "output")))
	}
	return call(ctx, "DELETE", url+"/"+group, "", nil)
}

// far is the run with the trouble.
func (l *lab) far(ctx context.Context) (farResult, error) {
	var diary []exchange
	err := l.run(ctx, farSlots, "indexer: "+farFlush+"\n", func(p *proxy, _ string) error {
		p.setDelay(farTrip)
		start, err := firstRequest(ctx, p)
		if err != nil {
			return err
		}
		pause(ctx, time.Until(start.Add(farTrouble)))
		p.setDelay(5 * farTrip)
		pause(ctx, time.Until(start.Add(farRepair)))
		p.setDelay(farTrip)
		pause(ctx, time.Until(start.Add(farEnd)))
		diary = p.read()
		return ctx.Err()
	})
	if err != nil {
		return farResult{}, err
	}
	return judgeFar(diary), nil
}

// judgeFar reads the diary of the run with the trouble.
func judgeFar(diary []exchange) farResult {
	began := diary[0].Began
	for _, e := range diary {
		if e.Began.Before(began) {
			began = e.Began
		}
	}
	seconds := int(farEnd / time.Second)
	r := farResult{InFlight: make([]float64, seconds), Rate: make([]float64, seconds)}
	first16 := time.Duration(math.MaxInt64)
	var trips []float64
	for _, e := range diary {
		from, to := e.Began.Sub(began), e.Began.Add(e.Took).Sub(began)
		if second := int(from / time.Second); second < seconds {
			r.InFlight[second] = max(r.InFlight[second], float64(e.InFlight))
		}
		if second := int(to / time.Second); second < seconds {
			r.Rate[second]++
		}
		if e.InFlight >= 16 {
			first16 = min(first16, from)
		}
		if to < farSettle && e.InFlight <= farSlots {
			trips = append(trips, e.Took.Seconds())
		}
	}
	r.RoundTrip = spreadOf(trips).Median
	if first16 < farTrouble {
		r.To16 = first16.Seconds() / r.RoundTrip
	}
	mean := func(from, to time.Duration) float64 {
		var sum float64
		for _, rate := range r.Rate[from/time.Second : to/time.Second] {
			sum += rate
		}
		return sum / (to - from).Seconds()
	}
	const window = 10 * farTrip
	r.Steady = mean(farSettle, farTrouble)
	r.OfBest = r.Steady * farTrip.Seconds() / farSlots
	for from := farSettle; from+window <= farTrouble; from += window {
		r.Swing = max(r.Swing, math.Abs(mean(from, from+window)/r.Steady-1))
	}
	r.AfterWithin = mean(farRepair, farRepair+window) / r.Steady
	r.After = mean(farRepair+window, farEnd) / r.Steady
	return r
}

// firstRequest waits for the first bulk request and returns when it began.
func firstRequest(ctx context.Context, p *proxy) (time.Time, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for ctx.Err() == nil {
		if diary := p.read(); len(diary) > 0 {
			return diary[0].Began, nil
		}
		pause(ctx, tick)
	}
	return time.Time{}, errors.New("no bulk request came within a minute")
}

// rates measures fixed limits and Sluice's own in turns.
func (l *lab) rates(ctx context.Context, limits ...int) ([]rateResult, error) {
	var results []rateResult
	for round := range rateRounds {
		for _, limit := range append([]int{0}, limits...) {
			r, err := l.rate(ctx, limit)
			if err != nil {
				return results, err
			}
			r.Round = round
			fmt.Fprintf(os.Stderr, "limit %d: %.0f docs/s, %.1f %% refused, %.0f in flight\n", r.Limit, r.DocsPerS, 100*r.Refused, r.InFlight)
			results = append(results, r)
		}
	}
	return results, nil
}

func (l *lab) rate(ctx context.Context, limit int) (rateResult, error) {
	more := ""
	if limit > 0 {
		more = fmt.Sprintf("indexer: {requests: {min: %d, max: %d}}\n", limit, limit)
	}
	r := rateResult{Limit: limit}
	err := l.run(ctx, 256, more, func(p *proxy, index string) error {
		start, err := firstRequest(ctx, p)
		if err != nil {
			return err
		}
		progress := indexWatch("http://"+l.node.address, index)
		pause(ctx, time.Until(start.Add(rateSettle)))
		before, err := progress(ctx)
		if err != nil {
			return err
		}
		from := time.Now()
		pause(ctx, rateWindow)
		after, err := progress(ctx)
		if err != nil {
			return err
		}
		r.DocsPerS = float64(after.Docs-before.Docs) / time.Since(from).Seconds()
		var requests, refused float64
		var inFlight []float64
		for _, e := range p.read() {
			if e.Began.Before(from) {
				continue
			}
			requests++
			if e.Refused {
				refused++
			}
			inFlight = append(inFlight, float64(e.InFlight))
		}
		if requests == 0 {
			return errors.New("no bulk request came while it was measured: the topic is too small (-docs)")
		}
		r.Refused, r.InFlight = refused/requests, spreadOf(inFlight).Median
		return nil
	})
	return r, err
}

// bestOf returns the highest median rate of a fixed limit, Sluice's own, and
// the share of Sluice's requests that were refused.
func bestOf(results []rateResult) (limit int, best, own, refused float64) {
	rates := map[int][]float64{}
	for _, r := range results {
		if r.Round == 0 {
			continue
		}
		rates[r.Limit] = append(rates[r.Limit], r.DocsPerS)
		if r.Limit == 0 {
			refused = max(refused, r.Refused)
		}
	}
	for l, values := range rates {
		if rate := spreadOf(values).Median; l == 0 {
			own = rate
		} else if rate > best {
			limit, best = l, rate
		}
	}
	return limit, best, own, refused
}

// table prints what became of each bar.
func (r *limiterResults) table(w io.Writer) error {
	verdict := func(met bool) string {
		if met {
			return "met"
		}
		return "MISSED"
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	far := r.Far
	fmt.Fprintf(t, "16 in flight at %.2f s a request\t%.1f round trips\t<= 5 %s\n", far.RoundTrip, far.To16, verdict(far.To16 > 0 && far.To16 <= 5))
	fmt.Fprintf(t, "rate, of the 16 a second that are served at most\t%.0f %%\t>= 95 %% %s\n", 100*far.OfBest, verdict(far.OfBest >= 0.95))
	fmt.Fprintf(t, "most that ten round trips are off the mean\t%.0f %%\t<= 20 %% %s\n", 100*far.Swing, verdict(far.Swing <= 0.2))
	fmt.Fprintf(t, "rate from the tenth round trip after 30 s of trouble\t%.0f %%\t>= 90 %% %s\n", 100*far.After, verdict(far.After >= 0.9))
	limit, best, own, _ := bestOf(r.Bare)
	fmt.Fprintf(t, "a node without a proxy's delay: documents/s, of those of the best fixed limit (%d)\t%.0f %%\t>= 95 %% %s\n", limit, 100*own/best, verdict(own >= 0.95*best))
	limit, best, own, refused := bestOf(r.Refusing)
	fmt.Fprintf(t, "a node that refuses the 5th request: the same (%d)\t%.0f %%\t>= 95 %% %s\n", limit, 100*own/best, verdict(own >= 0.95*best))
	fmt.Fprintf(t, "requests that it refused\t%.1f %%\t<= 2 %% %s\n", 100*refused, verdict(refused <= 0.02))
	return t.Flush()
}

// simulate runs the simulation of the tests and reads what it prints.
func simulate(ctx context.Context) ([]simulatedServer, error) {
	output, err := exec.CommandContext(ctx, "go", "test", "./indexer", "-count=1", "-run", "TestLimiterSimulation", "-v").Output()
	if err != nil {
		return nil, fmt.Errorf("the simulation (go test ./indexer -run TestLimiterSimulation): %w", err)
	}
	return readSimulation(output)
}

// readSimulation reads the tables that TestLimiterSimulation logs.
func readSimulation(output []byte) ([]simulatedServer, error) {
	const test = "TestLimiterSimulation/"
	servers := map[string]simulatedServer{}
	var name string
	lines := bufio.NewScanner(bytes.NewReader(output))
	for lines.Scan() {
		line := lines.Text()
		if strings.HasPrefix(line, "=== ") {
			_, name, _ = strings.Cut(line, test)
			continue
		}
		// the rule, its rate, and shares of the best rate and of what was refused
		fields := strings.Fields(line)
		first := slices.IndexFunc(fields, func(f string) bool { return strings.HasSuffix(f, "%") })
		if name == "" || first < 2 || len(fields) < first+2 {
			continue
		}
		ofBest, err1 := strconv.ParseFloat(strings.TrimSuffix(fields[first], "%"), 64)
		refused, err2 := strconv.ParseFloat(strings.TrimSuffix(fields[first+1], "%"), 64)
		if err := errors.Join(err1, err2); err != nil {
			return nil, fmt.Errorf("the simulation prints another table than expected: %w", err)
		}
		s, known := servers[name]
		if !known {
			s = simulatedServer{Server: strings.ReplaceAll(name, "_", " "), OfBest: map[string]float64{}, Refused: map[string]float64{}}
		}
		rule := strings.Join(fields[:first-1], " ")
		s.OfBest[rule], s.Refused[rule] = ofBest, refused
		servers[name] = s
	}
	var all []simulatedServer
	for _, s := range servers {
		all = append(all, s)
	}
	slices.SortFunc(all, func(a, b simulatedServer) int { return strings.Compare(a.Server, b.Server) })
	if len(all) == 0 {
		return nil, errors.New("the simulation printed no table")
	}
	return all, nil
}
