package elastic

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/elastic/go-elasticsearch/v8/esapi"
)

// Control keeps control documents in one index: JSON objects by id, read in
// real time and changed by compare-and-set only. The index uses internal
// versions. Every call is bounded by the client's time-out and is made once: a
// write whose answer was lost may have been carried out, which a Get shows.
//
// An index that is not there is never taken for a document that is not there.
type Control struct {
	client *Client
	index  string
}

// Control returns the store on an index. Open must have succeeded once, in
// this process or another, before documents are created: otherwise the server
// may make the index with settings of its own.
func (c *Client) Control(index string) *Control { return &Control{client: c, index: index} }

// ErrNotFound is a control document that does not exist.
var ErrNotFound error = notFound{}

type notFound struct{}

func (notFound) Error() string  { return "no such control document" }
func (notFound) NotFound() bool { return true }

// ErrConflict is a control document that exists already, or that has changed
// since it was read. The error is a *ConflictError.
var ErrConflict = errors.New("the control document was changed by another process")

// ConflictError carries the document as it is now.
type ConflictError struct {
	ID string
	// Current is the document; nil if it is gone or could not be read.
	Current            json.RawMessage
	SeqNo, PrimaryTerm int64
}

// Error names the document.
func (e *ConflictError) Error() string { return e.ID + ": " + ErrConflict.Error() }

// Unwrap returns ErrConflict.
func (e *ConflictError) Unwrap() error { return ErrConflict }

// Conflict returns true: for rooms that know this error by its behaviour.
func (e *ConflictError) Conflict() bool { return true }

// controlFormat is the version of the index's layout. Documents have their own.
const controlFormat = 1

// createBody makes the index. dynamic:false keeps every document's fields out
// of the mapping: customers are names of fields there.
const createBody = `{
  "settings": {"index": {"number_of_shards": 1, "auto_expand_replicas": "0-1", "hidden": true}},
  "mappings": {"dynamic": false, "_meta": {"sluice": {"kind": "control", "format": 1}}}
}`

// Open makes the index where it does not exist, and checks that it is one of
// Sluice's. The error says which call and which rights are missing.
func (s *Control) Open(ctx context.Context) error {
	err := s.check(ctx)
	if !isIndexMissing(err) {
		return s.explain(err)
	}
	err = s.client.call(ctx, "creating the control index "+s.index,
		esapi.IndicesCreateRequest{Index: s.escaped(), Body: bytes.NewReader([]byte(createBody))}, nil)
	var refused *Error
	if errors.As(err, &refused) && refused.Type == "resource_already_exists_exception" {
		err = nil // another replica was first
	}
	if err == nil {
		err = s.check(ctx)
	}
	return s.explain(err)
}

// Check says whether the index is there and is one of Sluice's, and changes
// nothing. An index that is not there is an *Error of status 404.
func (s *Control) Check(ctx context.Context) error { return s.explain(s.check(ctx)) }

func (s *Control) check(ctx context.Context) error {
	var indices map[string]struct {
		Mappings struct {
			Meta struct {
				Sluice struct {
					Kind   string `json:"kind"`
					Format int    `json:"format"`
				} `json:"sluice"`
			} `json:"_meta"`
		} `json:"mappings"`
	}
	err := s.client.call(ctx, "looking at the control index "+s.index, esapi.IndicesGetRequest{Index: []string{s.escaped()}}, &indices)
	if err != nil {
		return err
	}
	if len(indices) != 1 {
		return fmt.Errorf("elasticsearch: the control index %s is %d indices: it must be one", s.index, len(indices))
	}
	for _, index := range indices {
		switch meta := index.Mappings.Meta.Sluice; {
		case meta.Kind != "control":
			return fmt.Errorf("elasticsearch: the index %s exists and is not a control index of Sluice (its mapping has no _meta.sluice.kind): name another as routing.control_index, or delete it", s.index)
		case meta.Format > controlFormat:
			return fmt.Errorf("elasticsearch: the control index %s has format %d, this program knows %d: update Sluice", s.index, meta.Format, controlFormat)
		}
	}
	return nil
}

// explain adds the remedy to a refusal for want of rights, or of the index.
func (s *Control) explain(err error) error {
	var refused *Error
	if !errors.As(err, &refused) || refused.Status != http.StatusForbidden && refused.Status != http.StatusUnauthorized && refused.Status != http.StatusNotFound {
		return err
	}
	return fmt.Errorf("%w\nThe control index keeps generations and routing tables. Either grant Sluice on %q the index privileges "+
		"read, index, delete, view_index_metadata and create_index, or have it created once with\n  PUT /%s\n%s\nand grant the first four",
		err, s.index, s.escaped(), createBody)
}

func isIndexMissing(err error) bool {
	var refused *Error
	return errors.As(err, &refused) && refused.Status == http.StatusNotFound && refused.Type == "index_not_found_exception"
}

func (s *Control) escaped() string { return url.PathEscape(s.index) }

// Get reads a document in real time, decodes it into doc (a pointer) and
// returns its version. An error that wraps ErrNotFound says that it does not
// exist.
func (s *Control) Get(ctx context.Context, id string, doc any) (seqNo, primaryTerm int64, err error) {
	raw, seqNo, primaryTerm, err := s.get(ctx, id)
	if err != nil {
		return 0, 0, err
	}
	if err := json.Unmarshal(raw, doc); err != nil {
		return 0, 0, fmt.Errorf("elasticsearch: the control document %s in %s is damaged: %w", id, s.index, err)
	}
	return seqNo, primaryTerm, nil
}

func (s *Control) get(ctx context.Context, id string) (doc json.RawMessage, seqNo, primaryTerm int64, err error) {
	var answer struct {
		Found       bool            `json:"found"`
		SeqNo       int64           `json:"_seq_no"`
		PrimaryTerm int64           `json:"_primary_term"`
		Source      json.RawMessage `json:"_source"`
	}
	realtime := true
	err = s.client.call(ctx, "reading "+s.name(id), esapi.GetRequest{Index: s.escaped(), DocumentID: url.PathEscape(id), Realtime: &realtime}, &answer)
	switch {
	case isAbsent(err):
		return nil, 0, 0, fmt.Errorf("%s: %w", s.name(id), ErrNotFound)
	case err != nil:
		return nil, 0, 0, err
	case !answer.Found || answer.Source == nil || answer.PrimaryTerm == 0:
		return nil, 0, 0, fmt.Errorf("elasticsearch: reading %s: the answer is not that of a document", s.name(id))
	}
	return answer.Source, answer.SeqNo, answer.PrimaryTerm, nil
}

// Create stores a document that must not exist yet. An error that wraps
// ErrConflict says that it does.
func (s *Control) Create(ctx context.Context, id string, doc any) error {
	body, err := json.Marshal(doc)
	if err != nil {
		return fmt.Errorf("elasticsearch: encoding %s: %w", s.name(id), err)
	}
	_, err = s.write(ctx, "creating", id, "created", esapi.CreateRequest{Index: s.escaped(), DocumentID: url.PathEscape(id), Body: bytes.NewReader(body)})
	return err
}

// written is the answer to a write of one document.
type written struct {
	ID          string `json:"_id"`
	Result      string `json:"result"`
	SeqNo       int64  `json:"_seq_no"`
	PrimaryTerm int64  `json:"_primary_term"`
}

// write makes a request whose result must be the given one. It believes no answer that does not say so of the very document: what stands
// between may answer 200 to everything.
func (s *Control) write(ctx context.Context, doing, id, result string, req esapi.Request) (written, error) {
	var answer written
	err := s.client.call(ctx, doing+" "+s.name(id), req, &answer)
	if err != nil {
		return written{}, s.conflict(ctx, id, err)
	}
	if answer.ID != id || answer.Result != result || answer.PrimaryTerm == 0 {
		return written{}, fmt.Errorf("elasticsearch: %s %s: the answer does not say that it was %s: whether it was is not known", doing, s.name(id), result)
	}
	return answer, nil
}

// Update replaces a document whose version is still the one that Get returned.
// An error that wraps ErrConflict says that it is not, or that the document is
// gone.
func (s *Control) Update(ctx context.Context, id string, doc any, seqNo, primaryTerm int64) error {
	_, _, err := s.Replace(ctx, id, doc, seqNo, primaryTerm)
	return err
}

// Replace is Update, and returns the new version.
func (s *Control) Replace(ctx context.Context, id string, doc any, seqNo, primaryTerm int64) (newSeqNo, newTerm int64, err error) {
	body, err := json.Marshal(doc)
	if err != nil {
		return 0, 0, fmt.Errorf("elasticsearch: encoding %s: %w", s.name(id), err)
	}
	number, term := int(seqNo), int(primaryTerm)
	answer, err := s.write(ctx, "updating", id, "updated",
		esapi.IndexRequest{Index: s.escaped(), DocumentID: url.PathEscape(id), Body: bytes.NewReader(body), IfSeqNo: &number, IfPrimaryTerm: &term})
	return answer.SeqNo, answer.PrimaryTerm, err
}

// Delete removes a document whose version is still the one that Get returned.
// Errors wrap ErrConflict or ErrNotFound where it is not.
func (s *Control) Delete(ctx context.Context, id string, seqNo, primaryTerm int64) error {
	number, term := int(seqNo), int(primaryTerm)
	_, err := s.write(ctx, "deleting", id, "deleted", esapi.DeleteRequest{Index: s.escaped(), DocumentID: url.PathEscape(id), IfSeqNo: &number, IfPrimaryTerm: &term})
	if isAbsent(err) {
		return fmt.Errorf("%s: %w", s.name(id), ErrNotFound)
	}
	return err
}

// GetMany reads documents in real time, in the order of their ids; nil stands
// for one that does not exist.
func (s *Control) GetMany(ctx context.Context, ids []string) ([]json.RawMessage, error) {
	found, err := s.GetVersions(ctx, ids)
	if err != nil {
		return nil, err
	}
	docs := make([]json.RawMessage, len(ids))
	for i, doc := range found {
		if doc.Found {
			docs[i] = doc.Source
		}
	}
	return docs, nil
}

// GetVersions is GetMany with the documents' versions, for Update.
func (s *Control) GetVersions(ctx context.Context, ids []string) ([]Doc, error) {
	names := make([]DocID, len(ids))
	for i, id := range ids {
		names[i] = DocID{Index: s.index, ID: id}
	}
	return s.client.GetMany(ctx, names)
}

// List returns the ids that begin with a text, sorted, as searches see
// them: what was written within the last second or so may be missing, unless
// fresh asks for a refresh first, which needs the privilege maintenance.
func (s *Control) List(ctx context.Context, prefix string, fresh bool) ([]string, error) {
	if fresh {
		if err := s.client.Refresh(ctx, s.index); err != nil {
			return nil, err
		}
	}
	const page = 1000
	var ids []string
	for after := int64(-1); ; {
		found, err := s.client.Search(ctx, s.index, map[string]any{
			"size": page, "_source": false, "track_total_hits": false, "seq_no_primary_term": true,
			"sort":  []any{map[string]any{"_seq_no": "asc"}},
			"query": map[string]any{"range": map[string]any{"_seq_no": map[string]any{"gt": after}}},
		})
		if err != nil {
			return nil, err
		}
		for _, hit := range found.Hits {
			if strings.HasPrefix(hit.ID, prefix) {
				ids = append(ids, hit.ID)
			}
			after = hit.SeqNo
		}
		if len(found.Hits) < page {
			// A document that changed meanwhile has moved on and is met again.
			slices.Sort(ids)
			return slices.Compact(ids), nil
		}
	}
}

// conflict turns a refused compare-and-set into a *ConflictError.
func (s *Control) conflict(ctx context.Context, id string, err error) error {
	var refused *Error
	if !errors.As(err, &refused) || refused.Status != http.StatusConflict {
		return err
	}
	e := &ConflictError{ID: id}
	// The document is a help only: without it the caller reads again.
	if raw, seqNo, primaryTerm, err := s.get(ctx, id); err == nil {
		e.Current, e.SeqNo, e.PrimaryTerm = raw, seqNo, primaryTerm
	}
	return e
}

func isAbsent(err error) bool {
	var refused *Error
	return errors.As(err, &refused) && refused.absent
}

func (s *Control) name(id string) string { return s.index + "/" + id }
