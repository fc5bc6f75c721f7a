package deadletter

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/rs/zerolog"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/sluicehq/sluice/memory"
)

const (
	// indexBatch bounds the letters of one request, window its bytes.
	indexBatch = 500
	// callTimeout bounds one request to the index.
	callTimeout = 20 * time.Second
	// maxAnswer bounds an answer to the process that writes letters; what reads
	// them back gets maxPage.
	maxAnswer = 8 << 20
	maxPage   = 256 << 20
)

// ErrNotOurs is an index of that name that holds something else.
var ErrNotOurs = errors.New("the index exists and holds no dead letters of Sluice (its mapping has no _meta.sluice.kind): name another as dead_letter.index, or delete it")

// indexBody makes the index. dynamic:false keeps keys, values and headers out
// of the mapping: whatever a letter holds, the index takes it.
const indexBody = `{
  "settings": {"index": {"number_of_shards": 1, "auto_expand_replicas": "0-1"}},
  "mappings": {"dynamic": false, "_meta": {"sluice": {"kind": "dead_letters", "format": 1}}, "properties": {
    "written": {"type": "date"},
    "sluice": {"properties": {
      "topic": {"type": "keyword"}, "partition": {"type": "integer"}, "offset": {"type": "long"},
      "timestamp": {"type": "date", "ignore_malformed": true}, "reason": {"type": "keyword"}, "type": {"type": "keyword"},
      "status": {"type": "integer"}, "target": {"type": "keyword"}, "side": {"type": "keyword"}, "attempts": {"type": "integer"},
      "sequence": {"type": "long"}, "generation": {"type": "integer"}, "release": {"type": "keyword"}}}}}
}`

// Transport sends one HTTP request whose URL has a path only, and chooses the
// node; *elastic.Client is one. Sluice's transport for bulk requests serves.
type Transport interface {
	Perform(*http.Request) (*http.Response, error)
}

// Document is a letter as it stands in an index, and as it is shown as JSON.
// Bytes are base64, null where the record had none.
type Document struct {
	Written time.Time        `json:"written"`
	Sluice  Facts            `json:"sluice"`
	Key     []byte           `json:"key"`
	Value   []byte           `json:"value"`
	Headers []DocumentHeader `json:"headers"`
}

// Facts is what Sluice knows of a letter: everything but the record's content.
type Facts struct {
	Topic      string `json:"topic"`
	Partition  int32  `json:"partition"`
	Offset     int64  `json:"offset"`
	Timestamp  int64  `json:"timestamp"` // Unix milliseconds
	Reason     string `json:"reason"`
	Type       string `json:"type"`
	Status     int    `json:"status"`
	Target     string `json:"target"`
	Side       string `json:"side"`
	Attempts   int    `json:"attempts"`
	Sequence   int64  `json:"sequence"`
	Generation int    `json:"generation"`
	Release    string `json:"release"`
}

// DocumentHeader is one header of the record.
type DocumentHeader struct {
	Key   string `json:"key"`
	Value []byte `json:"value"`
}

// Facts returns everything but the content.
func (l *Letter) Facts() Facts {
	return Facts{
		Topic: l.Topic, Partition: l.Partition, Offset: l.Offset, Timestamp: l.Timestamp.UnixMilli(),
		Reason: Shorten(l.Reason), Type: l.Type, Status: l.Status, Target: l.Target, Side: l.Side,
		Attempts: l.Attempts, Sequence: l.Sequence, Generation: l.Generation, Release: l.Release,
	}
}

// Document returns the letter as it is stored in an index; written is
// Stored.Time.
func (l *Letter) Document() Document {
	d := Document{Written: l.Stored.Time.UTC(), Sluice: l.Facts(), Key: l.Key, Value: l.Value, Headers: make([]DocumentHeader, len(l.Headers))}
	for i, h := range l.Headers {
		d.Headers[i] = DocumentHeader(h)
	}
	return d
}

func (d *Document) letter() Letter {
	f := d.Sluice
	l := Letter{
		Topic: f.Topic, Partition: f.Partition, Offset: f.Offset, Timestamp: time.UnixMilli(f.Timestamp),
		Key: d.Key, Value: d.Value,
		Reason: f.Reason, Type: f.Type, Status: f.Status, Target: f.Target, Side: f.Side,
		Attempts: f.Attempts, Sequence: f.Sequence, Generation: f.Generation, Release: f.Release,
		Stored: Stored{Partition: -1, Offset: -1, Time: d.Written},
	}
	for _, h := range d.Headers {
		l.Headers = append(l.Headers, kgo.RecordHeader(h))
	}
	return l
}

// documentID is the letter's place: a letter that is written again finds
// itself. Where no generation tells of which topic of that name, the record's
// time does.
func (l *Letter) documentID() string {
	id := l.Topic
	if l.Generation > 1 {
		id += "+g" + strconv.Itoa(l.Generation)
	}
	id = fmt.Sprintf("%s+%d+%d", id, l.Partition, l.Offset)
	if l.Generation == 0 && !mutantPlace {
		id += "+" + strconv.FormatInt(l.Timestamp.UnixMilli(), 10)
	}
	return id
}

// IndexOptions is what an IndexWriter needs beside its section of the
// configuration.
type IndexOptions struct {
	Transport Transport
	Budget    *memory.Budget
	Release   string // Sluice's version
	Log       zerolog.Logger
}

// IndexWriter writes letters to an index, which it makes where it is missing.
// All methods are safe for concurrent use.
type IndexWriter struct {
	book
	index     string
	transport Transport

	cancel   context.CancelFunc
	stopped  sync.WaitGroup
	wake     chan struct{} // of capacity 1
	shutdown sync.Once

	queue []*letter // under mu
}

// NewIndex starts a writer for cfg.Index, which is looked for at once.
func NewIndex(cfg Config, o IndexOptions) (*IndexWriter, error) {
	if cfg.Index == "" {
		return nil, errors.New("dead_letter.index is empty")
	}
	ctx, cancel := context.WithCancel(context.Background())
	w := &IndexWriter{index: cfg.Index, transport: o.Transport, cancel: cancel, wake: make(chan struct{}, 1)}
	w.open(o.Budget, o.Release, o.Log.With().Str("dead_letter_index", cfg.Index).Logger())
	w.stopped.Go(func() { w.run(ctx) })
	return w, nil
}

// Write takes a letter and never blocks. Its bytes must not change until done,
// which is called once: with nil after the index's acknowledgement, with an
// error that wraps ErrRefused (also where it is ErrOversize), or with ErrClosed
// (which may be before Write returns). done must not block; it runs on the
// writer's goroutine.
func (w *IndexWriter) Write(l Letter, done func(error)) {
	l.Stored.Time = time.Now()
	w.take(l, done, func(e *letter) { w.queue = append(w.queue, e) })
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// run sends what is queued, batch by batch, and after a failure waits before it
// tries again. It ends with ctx.
func (w *IndexWriter) run(ctx context.Context) {
	failures := 0
	look := true // for the index, also where no letter waits
	for {
		batch := w.next()
		if len(batch) > 0 || look {
			left, err := w.send(ctx, batch)
			if ctx.Err() != nil {
				return
			}
			look = err != nil
			w.mu.Lock()
			w.queue = append(left, w.queue...)
			w.mu.Unlock()
			if err == nil {
				failures = 0
				w.calm()
				continue
			}
			w.raise(err.Error())
			failures++
			select {
			case <-time.After(min(firstBackoff<<min(failures-1, 10), maxBackoff)):
			case <-ctx.Done():
				return
			}
			continue
		}
		select {
		case <-w.wake:
		case <-ctx.Done():
			return
		}
	}
}

// next takes the letters of one request out of the queue.
func (w *IndexWriter) next() []*letter {
	w.mu.Lock()
	defer w.mu.Unlock()
	n, size := 0, int64(0)
	for n < len(w.queue) && n < indexBatch {
		l := w.queue[n]
		if n > 0 && (l.alone || size+l.size > window) {
			break
		}
		n++
		size += l.size
		if l.alone {
			break
		}
	}
	batch := w.queue[:n:n]
	w.queue = w.queue[n:]
	return batch
}

// send writes a batch and reports what was decided. left are the letters to try
// again; err says why, nil where nothing is wrong.
func (w *IndexWriter) send(ctx context.Context, batch []*letter) (left []*letter, err error) {
	if err := prepareIndex(ctx, w.transport, w.index); err != nil || len(batch) == 0 {
		return batch, err
	}
	var body bytes.Buffer
	encoder := json.NewEncoder(&body) // ends each value with a line break
	for _, l := range batch {
		action := map[string]any{"create": map[string]string{"_id": l.documentID()}}
		if err := errors.Join(encoder.Encode(action), encoder.Encode(l.Document())); err != nil {
			return batch, err
		}
	}
	if w.budget != nil {
		w.budget.Force(int64(body.Cap()))
		defer w.budget.Give(int64(body.Cap()))
	}
	var answer struct {
		Items []map[string]struct {
			Status int `json:"status"`
			Error  struct {
				Type string `json:"type"`
			} `json:"error"`
		} `json:"items"`
	}
	status, err := call(ctx, w.transport, http.MethodPost, "/"+url.PathEscape(w.index)+"/_bulk", "application/x-ndjson", body.Bytes(), &answer)
	switch {
	case status == http.StatusRequestEntityTooLarge && len(batch) == 1:
		w.report(batch[0], fmt.Errorf("%s/%d/%d: %w", batch[0].Topic, batch[0].Partition, batch[0].Offset, ErrOversize))
		return nil, nil
	case status == http.StatusRequestEntityTooLarge:
		w.mu.Lock()
		for _, l := range batch {
			l.alone = true
		}
		w.mu.Unlock()
		return batch, nil
	case err != nil:
		return batch, err
	case len(answer.Items) != len(batch):
		return batch, fmt.Errorf("the index %s answered for %d letters of %d", w.index, len(answer.Items), len(batch))
	}
	for i, l := range batch {
		item := answer.Items[i]["create"]
		switch {
		case item.Status == http.StatusCreated || item.Status == http.StatusOK || item.Status == http.StatusConflict: // 409: it is there already
			w.report(l, nil)
		case item.Error.Type == "document_parsing_exception" || item.Error.Type == "mapper_parsing_exception" || item.Error.Type == "strict_dynamic_mapping_exception":
			// Only in an index that somebody made with a mapping of his own.
			w.report(l, fmt.Errorf("%s/%d/%d: %s: %w", l.Topic, l.Partition, l.Offset, item.Error.Type, ErrRefused))
		default:
			left = append(left, l)
			err = fmt.Errorf("the index %s takes no letters: %d %s", w.index, item.Status, item.Error.Type)
		}
	}
	return left, err
}

// Close takes no more letters and waits until all are acknowledged, or until
// ctx ends: what is left then is reported with ErrClosed, and the cause is
// returned. When it returns, all letters were reported and nothing runs any
// more. It may be called again.
func (w *IndexWriter) Close(ctx context.Context) (err error) {
	w.shutdown.Do(func() {
		err = w.settle(ctx)
		w.cancel()
		w.stopped.Wait()
		w.giveUp()
	})
	return err
}

// CheckIndex says whether the index of dead letters is there and is one of
// Sluice's. missing says that it is not there: the first start makes it.
func CheckIndex(ctx context.Context, t Transport, index string) (missing bool, err error) {
	var indices map[string]struct {
		Mappings struct {
			Meta struct {
				Sluice struct {
					Kind string `json:"kind"`
				} `json:"sluice"`
			} `json:"_meta"`
		} `json:"mappings"`
	}
	status, err := call(ctx, t, http.MethodGet, "/"+url.PathEscape(index)+"/_mapping", "", nil, &indices)
	if status == http.StatusNotFound {
		return true, nil
	}
	if err != nil {
		return false, err
	}
	for _, i := range indices {
		if i.Mappings.Meta.Sluice.Kind != "dead_letters" {
			return false, fmt.Errorf("%s: %w", index, ErrNotOurs)
		}
	}
	return false, nil
}

// prepareIndex makes the index where it is missing. A bulk request would make
// it, too, but with a mapping that the first letters' content gives.
func prepareIndex(ctx context.Context, t Transport, index string) error {
	missing, err := CheckIndex(ctx, t, index)
	if err != nil || !missing {
		return err
	}
	status, err := call(ctx, t, http.MethodPut, "/"+url.PathEscape(index), "application/json", []byte(indexBody), nil)
	if status == http.StatusBadRequest { // another replica was first, or its name is refused: the look tells
		if missing, again := CheckIndex(ctx, t, index); again == nil && !missing {
			return nil
		}
	}
	if err != nil {
		return fmt.Errorf("making the index of dead letters: grant create_index, view_index_metadata and create_doc on it, or have it made once with the mapping in docs/operations.md: %w", err)
	}
	return nil
}

// call sends one request and decodes a success into out (nil: not looked at).
// An answer of any other kind is an error that quotes nothing but its status
// and its error type, for reasons may hold content. status is 0 without an
// answer.
func call(ctx context.Context, t Transport, method, path, contentType string, body []byte, out any) (status int, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, callTimeout, fmt.Errorf("no answer within %s", callTimeout))
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, path, bytes.NewReader(body))
	if err != nil {
		return 0, err
	}
	if contentType != "" {
		req.Header.Set("Content-Type", contentType)
	}
	res, err := t.Perform(req)
	if err != nil {
		return 0, fmt.Errorf("%s %s: %w", method, path, err)
	}
	defer res.Body.Close()
	most := maxAnswer
	if strings.HasSuffix(path, "/_search") {
		most = maxPage
	}
	text, err := memory.ReadAtMost(nil, res.Body, most, nil)
	var large *memory.TooLargeError
	if errors.As(err, &large) {
		return 0, fmt.Errorf("%s %s: the answer is larger than any server's: %w: see what elasticsearch.addresses names and what is between", method, path, err)
	}
	if err != nil {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return 0, fmt.Errorf("%s %s: reading the answer: %w", method, path, err)
	}
	if res.StatusCode >= 300 {
		var refusal struct {
			Error struct {
				Type string `json:"type"`
			} `json:"error"`
		}
		_ = json.Unmarshal(text, &refusal) // a proxy's page has no type
		return res.StatusCode, fmt.Errorf("%s %s: %d %s %s", method, path, res.StatusCode, http.StatusText(res.StatusCode), refusal.Error.Type)
	}
	if out == nil {
		return res.StatusCode, nil
	}
	if err := json.Unmarshal(text, out); err != nil {
		return 0, fmt.Errorf("%s %s: the answer is not what was expected: %w", method, path, err)
	}
	return res.StatusCode, nil
}
