//go:build integration

package integration_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/sluicehq/sluice/integration_test/poison"
)

// maxRequest is the largest request that the server of TestPoison takes.
const maxRequest = 2 << 20

// TestPoison puts one record of each kind of poison among a hundred thousand
// good ones: the dead letters are exactly those that must be, byte for byte,
// and everything else is indexed, in about the time that it takes without
// poison. The times are logged: one machine's noise proves nothing.
func TestPoison(t *testing.T) {
	const good = 100_000
	p := &poisonRun{
		kafka:         startKafka(t, nil),
		elasticsearch: startElasticsearch(t, elasticsearchOptions{Settings: map[string]string{"http.max_content_length": strconv.Itoa(maxRequest) + "b"}}),
	}
	p.elasticsearch.Do(t, http.MethodPut, "/_ingest/pipeline/drop", `{"processors":[{"drop":{}}]}`)
	front := httptest.NewServer(&inFront{server: p.elasticsearch.URL()})
	t.Cleanup(front.Close)
	p.url = front.URL

	kinds := poison.Kinds(maxRequest)
	// Those that take longest stand last in the table: among the records they
	// stand anywhere.
	rand.New(rand.NewPCG(1, 1)).Shuffle(len(kinds), func(i, j int) { kinds[i], kinds[j] = kinds[j], kinds[i] })
	t.Run("warm up", func(t *testing.T) { p.run(t, "server", good/5, nil) })
	took := map[string]time.Duration{}
	for _, validate := range []string{"server", "strict"} {
		t.Run(validate, func(t *testing.T) {
			t.Run("clean", func(t *testing.T) { took["clean"] = p.run(t, validate, good+len(kinds), nil) })
			t.Run("poison", func(t *testing.T) { took["poison"] = p.run(t, validate, good, kinds) })
			t.Logf("%d records: clean %.2f s, with %d kinds of poison %.2f s, %.2f times that", good+len(kinds),
				took["clean"].Seconds(), len(kinds), took["poison"].Seconds(), took["poison"].Seconds()/took["clean"].Seconds())
		})
	}
}

// poisonRun is what the runs of TestPoison share.
type poisonRun struct {
	kafka         *Kafka
	elasticsearch *Elasticsearch
	url           string // of what stands in front of the server
}

// run moves good records with the kinds scattered among them, checks what
// became of each, and returns how long it took from the start of the process.
func (p *poisonRun) run(t *testing.T, validate string, good int, kinds []poison.Kind) time.Duration {
	topic, dropped, letters, index, group := unique(t, "t"), unique(t, "dropped"), unique(t, "letters"), unique(t, "i"), unique(t, "g")
	large := strconv.Itoa(4 * maxRequest)
	for name, partitions := range map[string]int32{topic: 4, dropped: 1, letters: 1} {
		if _, err := p.kafka.Admin.CreateTopic(t.Context(), partitions, 1, map[string]*string{"max.message.bytes": &large}, name); err != nil {
			t.Fatal(err)
		}
	}
	p.elasticsearch.Do(t, http.MethodPut, "/"+index, poison.Index)
	t.Cleanup(func() {
		if _, err := request(context.Background(), http.MethodDelete, p.elasticsearch.URL()+"/"+index, nil); err != nil {
			t.Error(err)
		}
	})

	want := map[string]string{}
	records := make([]*kgo.Record, good, good+len(kinds))
	filler := strings.Repeat("x", 100)
	for i := range records {
		records[i] = &kgo.Record{Topic: topic, Key: fmt.Appendf(nil, "key-%d", i), Value: fmt.Appendf(nil, `{"n":%d,"x":%q}`, i, filler)}
		want[string(records[i].Key)] = string(records[i].Value)
	}
	fates := map[*kgo.Record]poison.Fate{}
	var blocked *kgo.Record
	for i, kind := range kinds {
		record := &kgo.Record{Topic: topic, Key: kind.Key, Value: kind.Value, Headers: kind.Headers}
		if kind.Dropped {
			record.Topic = dropped
		}
		if kind.Blocks {
			blocked = record
		}
		fate := kind.Server
		if validate == "strict" {
			fate = kind.Strict
		}
		fates[record] = fate
		if fate == (poison.Fate{}) {
			want[string(record.Key)] = string(record.Value)
		}
		records = slices.Insert(records, (i+1)*len(records)/(len(kinds)+1), record)
	}
	p.produce(t, records)

	began := time.Now()
	sluice := startSluice(t, fmt.Sprintf(`
kafka: {brokers: [%q], group_id: %s, topics: [%s, %s], commit_interval: 200ms}
elasticsearch: {addresses: [%q], compression_level: 0}
documents: {index: %s, validate: %s}
overrides: [{topics: [%s], documents: {index: %s, pipeline: drop}}]
indexer: {flush_interval: 200ms, retry: {initial: 20ms, max: 50ms}}
dead_letter: {topic: %s}
`, p.kafka.address, group, topic, dropped, p.url, index, validate, dropped, index+"-dropped", letters))
	if blocked != nil {
		sluice.awaitBlocked(t)
		sluice.skip(t, blocked)
	}
	for _, name := range []string{topic, dropped} {
		p.kafka.AwaitNoLag(t, 2*time.Minute, group, name, sluice.Check)
	}
	took := time.Since(began)
	if code := sluice.End(t, syscall.SIGTERM); code != 0 {
		t.Errorf("SIGTERM ended sluice with exit code %d", code)
	}
	assertLedger(t, sluice)
	checkPoisonLetters(t, p.kafka.ReadAll(t, letters), fates)
	p.checkNotJSON(t, index, want)
	compare(t, p.elasticsearch.Documents(t, index), want)
	return took
}

// produce writes records, the largest of which no usual batch takes.
func (p *poisonRun) produce(t *testing.T, records []*kgo.Record) {
	t.Helper()
	client, err := kgo.NewClient(kgo.SeedBrokers(p.kafka.address), kgo.ProducerBatchMaxBytes(4*maxRequest))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	if err := client.ProduceSync(t.Context(), records...).FirstErr(); err != nil {
		t.Fatal(err)
	}
}

// checkNotJSON checks the documents that the server took although they are no
// JSON for Go, takes them out of the index and out of want.
func (p *poisonRun) checkNotJSON(t *testing.T, index string, want map[string]string) {
	t.Helper()
	for id, document := range want {
		if json.Valid([]byte(document)) {
			continue
		}
		delete(want, id)
		where := "/" + index + "/_source/" + url.PathEscape(id)
		if got := p.elasticsearch.Do(t, http.MethodGet, where, ""); string(got) != document {
			t.Errorf("%q is %q, not %q", id, got, document)
		}
		p.elasticsearch.Do(t, http.MethodDelete, "/"+index+"/_doc/"+url.PathEscape(id), "")
	}
}

// checkPoisonLetters fails unless the letters are those of the fates, once
// each and byte for byte.
func checkPoisonLetters(t *testing.T, letters []*kgo.Record, fates map[*kgo.Record]poison.Fate) {
	t.Helper()
	missing := map[string]*kgo.Record{}
	for record, fate := range fates {
		if fate.Type != "" {
			missing[fmt.Sprintf("%s/%d/%d", record.Topic, record.Partition, record.Offset)] = record
		}
	}
	same := func(a, b []byte) bool { return bytes.Equal(a, b) && (a == nil) == (b == nil) }
	for _, letter := range letters {
		own := slices.IndexFunc(letter.Headers, func(h kgo.RecordHeader) bool { return h.Key == "sluice.topic" })
		facts := map[string]string{}
		for _, h := range letter.Headers[max(own, 0):] {
			facts[h.Key] = string(h.Value)
		}
		where := facts["sluice.topic"] + "/" + facts["sluice.partition"] + "/" + facts["sluice.offset"]
		record := missing[where]
		if record == nil {
			t.Errorf("a dead letter of %s (key %.40q) that should not be there, or not twice: %s %s %s", where, letter.Key,
				facts["sluice.status"], facts["sluice.type"], facts["sluice.reason"])
			continue
		}
		delete(missing, where)
		if !same(letter.Key, record.Key) || !same(letter.Value, record.Value) || !slices.EqualFunc(letter.Headers[:own], record.Headers,
			func(a, b kgo.RecordHeader) bool { return a.Key == b.Key && same(a.Value, b.Value) }) {
			t.Errorf("the dead letter of %s (key %.40q) differs from its record", where, record.Key)
		}
		if fate := fates[record]; facts["sluice.type"] != fate.Type || facts["sluice.status"] != strconv.Itoa(fate.Status) {
			t.Errorf("the dead letter of key %.40q says %s %s (%s), want %d %s", record.Key,
				facts["sluice.status"], facts["sluice.type"], facts["sluice.reason"], fate.Status, fate.Type)
		}
	}
	for where, record := range missing {
		t.Errorf("there is no dead letter of %s, key %.40q", where, record.Key)
	}
}

// awaitBlocked waits until one record is known to be never answered.
func (s *Sluice) awaitBlocked(t *testing.T) {
	t.Helper()
	await(t, time.Minute, "a record that is never answered", func() error {
		if err := s.Check(); err != nil {
			return err
		}
		answer, err := request(t.Context(), http.MethodGet, "http://"+s.admin+"/v1/status", nil)
		if err != nil {
			return err
		}
		var status struct {
			Indexer struct {
				Blocked int `json:"records_never_answered"`
			} `json:"indexer"`
		}
		if err := json.Unmarshal(answer, &status); err != nil {
			return stop{err}
		}
		if status.Indexer.Blocked != 1 {
			return fmt.Errorf("there are %d", status.Indexer.Blocked)
		}
		return nil
	})
}

// skip does what an operator does about a record that blocks its partition. It
// is refused while the record is on the wire.
func (s *Sluice) skip(t *testing.T, record *kgo.Record) {
	t.Helper()
	body := fmt.Appendf(nil, `{"topic":%q,"partition":%d,"offset":%d}`, record.Topic, record.Partition, record.Offset)
	await(t, time.Minute, "the skip of a record", func() error {
		_, err := request(t.Context(), http.MethodPost, "http://"+s.admin+"/v1/skip", body)
		return err
	})
}

// inFront passes requests on to a server, but for bulk requests that hold a
// marker of package poison: there it does what the marker says.
type inFront struct{ server string }

func (f *inFront) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	body, err := io.ReadAll(req.Body)
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	bulk, failed := strings.HasSuffix(req.URL.Path, "/_bulk"), -1
	switch {
	case bulk && bytes.Contains(body, []byte(poison.Spoils)):
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusBadRequest)
		_, _ = io.WriteString(w, `{"error":{"type":"illegal_argument_exception","reason":"Malformed action/metadata line [1]"},"status":400}`)
		return
	case bulk && bytes.Contains(body, []byte(poison.Page)):
		w.Header().Set("Content-Type", "text/html")
		_, _ = io.WriteString(w, "<html><body>This request was blocked.</body></html>")
		return
	case bulk && bytes.Contains(body, []byte(poison.Fails)):
		body, failed = without(body, poison.Fails)
	}
	status, header, answer, err := f.forward(req, body)
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	if failed >= 0 && status == http.StatusOK {
		answer = withFailure(answer, failed)
		header.Del("Content-Length")
	}
	for name, values := range header {
		w.Header()[name] = values
	}
	w.WriteHeader(status)
	_, _ = w.Write(answer) // the client may be gone
}

func (f *inFront) forward(req *http.Request, body []byte) (int, http.Header, []byte, error) {
	if len(body) == 0 && strings.HasSuffix(req.URL.Path, "/_bulk") {
		return http.StatusOK, http.Header{"X-Elastic-Product": {"Elasticsearch"}}, []byte(`{"errors":false,"items":[]}`), nil
	}
	out, err := http.NewRequestWithContext(req.Context(), req.Method, f.server+req.URL.RequestURI(), bytes.NewReader(body))
	if err != nil {
		return 0, nil, nil, err
	}
	out.Header = req.Header.Clone()
	out.Header.Set("Accept-Encoding", "identity")
	resp, err := http.DefaultClient.Do(out)
	if err != nil {
		return 0, nil, nil, err
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	return resp.StatusCode, resp.Header, answer, err
}

// without takes the action whose document holds marker out of a bulk request
// and gives its position.
func without(body []byte, marker string) (rest []byte, position int) {
	position = -1
	actions := 0
	for len(body) > 0 {
		action, after, _ := bytes.Cut(body, []byte("\n"))
		size := len(action) + 1
		if !bytes.HasPrefix(action, []byte(`{"delete"`)) {
			document, _, _ := bytes.Cut(after, []byte("\n"))
			size += len(document) + 1
			if bytes.Contains(document, []byte(marker)) {
				position, actions = actions, actions+1
				body = body[size:]
				continue
			}
		}
		rest = append(rest, body[:size]...)
		body = body[size:]
		actions++
	}
	return rest, position
}

// withFailure puts a failed item into the answer to a bulk request.
func withFailure(answer []byte, position int) []byte {
	var parsed struct {
		Errors bool              `json:"errors"`
		Items  []json.RawMessage `json:"items"`
	}
	if err := json.Unmarshal(answer, &parsed); err != nil {
		return answer
	}
	parsed.Errors = true
	parsed.Items = slices.Insert(parsed.Items, position, json.RawMessage(`{"index":{"status":500,"error":{"type":"null_pointer_exception","reason":"null"}}}`))
	answer, _ = json.Marshal(parsed) // of raw messages: cannot fail
	return answer
}
