package elastic

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"testing"
)

// roundTripper answers in place of a server.
type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(req *http.Request) (*http.Response, error) { return f(req) }

func answer(status int, body string) *http.Response {
	return &http.Response{
		StatusCode: status, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: http.Header{"Content-Type": {"application/json"}}, Body: io.NopCloser(strings.NewReader(body)),
	}
}

// answering is a server with one answer to everything.
func answering(status int, body string) roundTripper {
	return func(*http.Request) (*http.Response, error) { return answer(status, body), nil }
}

func refusal(status int, kind, reason string) *http.Response {
	body, err := json.Marshal(map[string]any{"status": status, "error": map[string]string{"type": kind, "reason": reason}})
	if err != nil {
		panic(err)
	}
	return answer(status, string(body))
}

func newClient(t *testing.T, rt http.RoundTripper, opts ...Option) *Client {
	t.Helper()
	c, err := New(Config{Addresses: []string{"http://es:9200"}}, append(opts, WithRoundTripper(rt))...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return c
}

// server keeps documents as a cluster would, as far as Control uses it.
type server struct {
	mu      sync.Mutex
	indices map[string]map[string]any // body of the creation, by index
	docs    map[string]document       // by path of the document
	seqNo   int64

	before func(*http.Request) *http.Response // may answer first; outside the lock
	paths  []string
}

type document struct {
	source json.RawMessage
	seqNo  int64
}

func newServer() *server {
	return &server{indices: map[string]map[string]any{}, docs: map[string]document{}}
}

func (s *server) RoundTrip(req *http.Request) (*http.Response, error) {
	if s.before != nil {
		if res := s.before(req); res != nil {
			return res, nil
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.paths = append(s.paths, req.Method+" "+req.URL.EscapedPath())
	var body json.RawMessage
	if req.Body != nil {
		raw, err := io.ReadAll(req.Body)
		if err != nil {
			return nil, err
		}
		body = raw
	}
	part := strings.Split(strings.Trim(req.URL.EscapedPath(), "/"), "/")
	index, _ := url.PathUnescape(part[0])
	if len(part) == 1 {
		return s.index(req.Method, index, body), nil
	}
	if s.indices[index] == nil {
		return refusal(404, "index_not_found_exception", "no such index ["+index+"]"), nil
	}
	id, err := url.PathUnescape(part[2])
	if err != nil || len(part) != 3 {
		return refusal(400, "illegal_argument_exception", "no handler found"), nil
	}
	return s.doc(req.Method, part[1], index+"/"+id, req.URL.Query(), body), nil
}

func (s *server) index(method, name string, body json.RawMessage) *http.Response {
	existing := s.indices[name]
	switch {
	case method == http.MethodPut && existing != nil:
		return refusal(400, "resource_already_exists_exception", "index already exists")
	case method == http.MethodPut:
		var made map[string]any
		if err := json.Unmarshal(body, &made); err != nil {
			return refusal(400, "parse_exception", err.Error())
		}
		s.indices[name] = made
		return answer(200, `{"acknowledged":true}`)
	case existing == nil:
		return refusal(404, "index_not_found_exception", "no such index ["+name+"]")
	}
	raw, err := json.Marshal(map[string]any{name: existing})
	if err != nil {
		panic(err)
	}
	return answer(200, string(raw))
}

func (s *server) doc(method, api, path string, query url.Values, body json.RawMessage) *http.Response {
	doc, exists := s.docs[path]
	if ifSeqNo := query.Get("if_seq_no"); ifSeqNo != "" {
		if ifSeqNo != strconv.FormatInt(doc.seqNo, 10) || query.Get("if_primary_term") != "1" || !exists {
			return refusal(409, "version_conflict_engine_exception", "required seqNo ["+ifSeqNo+"]")
		}
	}
	switch {
	case method == http.MethodGet && !exists:
		return answer(404, `{"found":false}`)
	case method == http.MethodGet:
		if query.Get("realtime") != "true" {
			return refusal(400, "illegal_argument_exception", "a control document must be read in real time")
		}
		return answer(200, fmt.Sprintf(`{"found":true,"_seq_no":%d,"_primary_term":1,"_source":%s}`, doc.seqNo, doc.source))
	case method == http.MethodDelete && !exists:
		return answer(404, `{"result":"not_found"}`)
	case method == http.MethodDelete:
		delete(s.docs, path)
		s.seqNo++
		return wrote(200, path, "deleted", s.seqNo)
	case api == "_create" && exists:
		return refusal(409, "version_conflict_engine_exception", "document already exists")
	case !json.Valid(body) || bytes.ContainsAny(body, "\n"):
		return refusal(400, "document_parsing_exception", "failed to parse")
	}
	s.seqNo++
	s.docs[path] = document{body, s.seqNo}
	if exists {
		return wrote(200, path, "updated", s.seqNo)
	}
	return wrote(201, path, "created", s.seqNo)
}

func wrote(status int, path, result string, seqNo int64) *http.Response {
	index, id, _ := strings.Cut(path, "/")
	text, err := json.Marshal(map[string]any{"_index": index, "_id": id, "result": result, "_seq_no": seqNo, "_primary_term": 1})
	if err != nil {
		panic(err)
	}
	return answer(status, string(text))
}
