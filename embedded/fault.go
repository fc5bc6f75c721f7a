package embedded

import (
	"net/http"
	"path"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
)

// A Fault is what goes wrong with one request. Its parts happen in the order of
// its fields; the zero value is none. See [Refused] and its neighbours for the
// common ones.
type Fault struct {
	// Refuse breaks the connection before anything is read.
	Refuse bool
	// Delay passes before the node reads the request.
	Delay time.Duration
	// Hold keeps the request on its way to the node until the channel is closed.
	Hold <-chan struct{}
	// Late lets the node handle the request after Delay and Hold even if the
	// client has gone meanwhile: a zombie's write.
	Late bool
	// HoldWrite keeps a bulk request inside the node: it has been admitted to its
	// indices (a write block waits for it) and has written nothing yet.
	HoldWrite <-chan struct{}
	// Items is asked for each action of a bulk request: an error is answered for
	// the item in place of writing it.
	Items func(a Action) *ItemError
	// FailShards makes a search lose a shard: fewer hits and a failed shard in a
	// 200, or a 503 with allow_partial_search_results=false.
	FailShards bool
	// HoldAnswer keeps the answer back; what was asked has been done.
	HoldAnswer <-chan struct{}
	// Never leaves the request without an answer until the client gives up.
	Never bool
	// Status, if not 0, is answered with Header and Body. Bare leaves out the
	// product header.
	Status int
	Header http.Header
	Body   []byte
	Bare   bool
	// Apply carries the request out although Never or Status hides the outcome.
	Apply bool
	// Drop breaks the connection in place of the answer.
	Drop bool
	// Edit changes the answer's body.
	Edit func(body []byte) []byte
	// Cut breaks the connection after CutAfter bytes of the answer's body.
	Cut      bool
	CutAfter int
}

// An Action is one action of a bulk request, as [Fault.Items] sees it. Its
// slices are valid only during the call.
type Action struct {
	Op      string // index, create, update, delete
	Index   string // as the request names it
	ID      []byte
	Version int64 // 0: none
	Source  []byte
}

// An ItemError is the error of one item.
type ItemError struct {
	Status       int
	Type, Reason string
}

// A Rule says which requests a fault falls on. Every part that is set must
// hold.
type Rule struct {
	Fault Fault
	// API is the kind of request: bulk, search, get, info, health; "" is any.
	API string
	// Index matches the index in the path or a target of a bulk request; * is a
	// wildcard.
	Index string
	// Match is a further condition.
	Match func(*Request) bool
	// Next is how many requests it falls on; 0 is all.
	Next int
	// Share is the part of the matching requests it falls on; 0 is all.
	Share float64
	// From and Until bound it in time.
	From, Until time.Time
}

// An Injection is a rule in force.
type Injection struct {
	f       *faults
	rule    Rule
	seen    uint64
	hits    atomic.Int64
	removed bool
}

// Hits returns how many requests the rule has fallen on.
func (i *Injection) Hits() int { return int(i.hits.Load()) }

// Remove ends the rule. Requests that it holds stay held.
func (i *Injection) Remove() {
	i.f.mu.Lock()
	defer i.f.mu.Unlock()
	i.remove()
}

func (i *Injection) remove() {
	if !i.removed {
		i.removed = true
		i.f.rules = slices.DeleteFunc(i.f.rules, func(o *Injection) bool { return o == i })
		i.f.active.Add(-1)
	}
}

type faults struct {
	seed      uint64
	active    atomic.Int32
	mu        sync.Mutex
	rules     []*Injection
	intercept func(*Request) *Fault
}

// Inject puts a rule in force. Rules that fall on one request add up: the first
// one given decides each part of the fault, delays are summed.
func (es *Elasticsearch) Inject(r Rule) *Injection {
	i := &Injection{f: &es.faults, rule: r}
	es.faults.mu.Lock()
	defer es.faults.mu.Unlock()
	es.faults.rules = append(es.faults.rules, i)
	es.faults.active.Add(1)
	return i
}

// Intercept asks fn for the fault of every request (nil: none), before the
// rules. It replaces an earlier fn; nil removes it. fn may be called
// concurrently and must not block.
func (es *Elasticsearch) Intercept(fn func(*Request) *Fault) {
	es.faults.mu.Lock()
	defer es.faults.mu.Unlock()
	if (es.faults.intercept == nil) != (fn == nil) {
		if fn == nil {
			es.faults.active.Add(-1)
		} else {
			es.faults.active.Add(1)
		}
	}
	es.faults.intercept = fn
}

var noFault Fault

func (f *faults) decide(r *Request) *Fault {
	if f.active.Load() == 0 {
		return &noFault
	}
	f.mu.Lock()
	intercept := f.intercept
	f.mu.Unlock()
	out := Fault{}
	if intercept != nil {
		if x := intercept(r); x != nil {
			out = *x
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	now := time.Now()
	for _, i := range slices.Clone(f.rules) {
		if !i.matches(r, now) {
			continue
		}
		i.seen++
		if i.rule.Share > 0 && chance(f.seed, i.seen) >= i.rule.Share {
			continue
		}
		n := i.hits.Add(1)
		if i.rule.Next > 0 && int(n) >= i.rule.Next {
			i.remove()
		}
		out = out.with(i.rule.Fault)
	}
	return &out
}

// chance returns a number in [0, 1) that follows from seed and n.
func chance(seed, n uint64) float64 {
	return float64(mix(seed^mix(n))>>11) / (1 << 53)
}

func (i *Injection) matches(r *Request, now time.Time) bool {
	u := &i.rule
	switch {
	case !u.From.IsZero() && now.Before(u.From), !u.Until.IsZero() && !now.Before(u.Until):
		return false
	case u.API != "" && u.API != r.API():
		return false
	case u.Index != "" && !slices.ContainsFunc(r.Targets(), func(t string) bool { return glob(u.Index, t) }):
		return false
	}
	return u.Match == nil || u.Match(r)
}

func glob(pattern, s string) bool {
	ok, err := path.Match(pattern, s)
	return err == nil && ok
}

func (f Fault) with(o Fault) Fault {
	f.Refuse = f.Refuse || o.Refuse
	f.Delay += o.Delay
	f.Late = f.Late || o.Late
	if f.Hold == nil {
		f.Hold = o.Hold
	}
	if f.HoldWrite == nil {
		f.HoldWrite = o.HoldWrite
	}
	if f.HoldAnswer == nil {
		f.HoldAnswer = o.HoldAnswer
	}
	switch a, b := f.Items, o.Items; {
	case a == nil:
		f.Items = b
	case b != nil:
		f.Items = func(x Action) *ItemError {
			if e := a(x); e != nil {
				return e
			}
			return b(x)
		}
	}
	f.FailShards = f.FailShards || o.FailShards
	f.Never = f.Never || o.Never
	f.Drop = f.Drop || o.Drop
	f.Apply = f.Apply || o.Apply
	if f.Status == 0 {
		f.Status, f.Header, f.Body, f.Bare = o.Status, o.Header, o.Body, o.Bare
	}
	if f.Edit == nil {
		f.Edit = o.Edit
	}
	if !f.Cut {
		f.Cut, f.CutAfter = o.Cut, o.CutAfter
	}
	return f
}

// API returns the kind of request: bulk, search, get, info, health or other.
func (r *Request) API() string {
	last := ""
	if n := len(r.segments); n > 0 {
		last = r.segments[n-1]
	}
	switch {
	case len(r.segments) == 0:
		return "info"
	case r.isBulk():
		return "bulk"
	case last == "_search", last == "_count":
		return "search"
	case last == "_mget", len(r.segments) == 3 && r.segments[1] == "_doc" && r.Method == http.MethodGet:
		return "get"
	case r.segments[0] == "_cluster" && len(r.segments) > 1 && r.segments[1] == "health":
		return "health"
	}
	return "other"
}

func (r *Request) isBulk() bool {
	return len(r.segments) > 0 && r.segments[len(r.segments)-1] == "_bulk"
}

// Targets returns the index in the path, and for a bulk request the targets of
// its actions.
func (r *Request) Targets() []string {
	if r.targets != nil {
		return r.targets
	}
	r.targets = []string{}
	if len(r.segments) > 0 && r.segments[0] != "" && r.segments[0][0] != '_' {
		r.targets = append(r.targets, r.segments[0])
	}
	if r.isBulk() {
		b := bulkRequest{}
		if b.parse(r.Body, "", 0) == nil {
			for i := range b.items {
				if t := b.items[i].index; !slices.ContainsFunc(r.targets, func(s string) bool { return s == string(t) }) {
					r.targets = append(r.targets, string(t))
				}
			}
		}
	}
	return r.targets
}

// Refused is a connection that nobody answers.
func Refused() Fault { return Fault{Refuse: true} }

// Held is a request that stays on its way until release is closed.
func Held(release <-chan struct{}) Fault { return Fault{Hold: release} }

// Slow is a request that takes d to reach the node.
func Slow(d time.Duration) Fault { return Fault{Delay: d} }

// Answer is an answer of the test's making; the request is not carried out.
func Answer(status int, body string) Fault {
	return Fault{Status: status, Body: []byte(body)}
}

// TooManyRequests is the 429 of a node whose indexing memory is full of other
// requests, for the whole request. It carries no Retry-After unless one is given, in seconds.
func TooManyRequests(retryAfter int) Fault {
	f := Answer(http.StatusTooManyRequests, string(newError(http.StatusTooManyRequests, "es_rejected_execution_exception",
		"rejected execution of coordinating operation [coordinating_and_primary_bytes=20400, replica_bytes=0, all_bytes=20400, coordinating_operation_bytes=81, max_coordinating_bytes=20480]").body()))
	if retryAfter > 0 {
		f.Header = http.Header{"Retry-After": {strconv.Itoa(retryAfter)}}
	}
	return f
}

// CircuitBreaker is the 429 of a node whose heap is full.
func CircuitBreaker() Fault {
	return Answer(http.StatusTooManyRequests, string(newError(http.StatusTooManyRequests, "circuit_breaking_exception",
		"[parent] Data too large, data for [<http_request>] would be [264241152/252mb], which is larger than the limit of [255013683/243.1mb]",
		"durability", "TRANSIENT").body()))
}

// Unavailable is a 503 without a master.
func Unavailable() Fault {
	return Answer(http.StatusServiceUnavailable, string(newError(http.StatusServiceUnavailable, "cluster_block_exception",
		"blocked by: [SERVICE_UNAVAILABLE/2/no master];").body()))
}

// ServerError is a 500.
func ServerError() Fault {
	return Answer(http.StatusInternalServerError, string(newError(http.StatusInternalServerError, "null_pointer_exception", "null").body()))
}

// HTML is what a proxy answers with status, such as 502, or 200 for a wrong
// address.
func HTML(status int) Fault {
	return Fault{
		Status: status, Bare: true, Header: http.Header{"Content-Type": {"text/html"}},
		Body: []byte("<html><head><title>" + http.StatusText(status) + "</title></head><body>" + http.StatusText(status) + "</body></html>"),
	}
}

// Unauthorized is the 401 of credentials that are no longer valid.
func Unauthorized() Fault {
	f := Answer(http.StatusUnauthorized, string(newError(http.StatusUnauthorized, "security_exception",
		"unable to authenticate with provided credentials and anonymous access is not allowed for this request").body()))
	f.Bare = true
	return f
}

// Forbidden is the 403 of a user without rights, for the whole request.
func Forbidden() Fault {
	f := Answer(http.StatusForbidden, string(newError(http.StatusForbidden, "security_exception",
		"action [indices:data/write/bulk] is unauthorized for user [sluice] with effective roles [none], this action is granted by the index privileges [create_doc,create,delete,index,write,all]").body()))
	f.Bare = true
	return f
}

// TooLarge is a 413.
func TooLarge() Fault { return Fault{Status: http.StatusRequestEntityTooLarge, Bare: true} }

// Cut carries the request out and breaks the connection after n bytes of the
// answer.
func Cut(n int) Fault { return Fault{Cut: true, CutAfter: n} }

// Lost carries the request out; the answer is lost.
func Lost() Fault { return Fault{Drop: true} }

// Unanswered is a request that is neither carried out nor answered.
func Unanswered() Fault { return Fault{Never: true} }

// OneItemLess carries a bulk request out and leaves the last item out of the
// answer.
func OneItemLess() Fault { return Fault{Edit: dropLastItem} }

// FailItems answers err for the actions that match says; nil is all.
func FailItems(err ItemError, match func(a Action) bool) Fault {
	return Fault{Items: func(a Action) *ItemError {
		if match == nil || match(a) {
			return &err
		}
		return nil
	}}
}

// RejectItems answers 429 for a share of the items, by the seed.
func RejectItems(share float64, seed uint64) Fault {
	var n atomic.Uint64
	return Fault{Items: func(Action) *ItemError {
		if chance(seed, n.Add(1)) >= share {
			return nil
		}
		return &ItemError{
			Status: http.StatusTooManyRequests, Type: "es_rejected_execution_exception",
			Reason: "rejected execution of primary operation [coordinating_and_primary_bytes=0, max_primary_bytes=0]",
		}
	}}
}
