package elastic

import (
	"encoding/json"
	"errors"
	"net/http"
	"reflect"
	"strings"
	"testing"
)

const controlIndex = ".sluice-control"

func openControl(t *testing.T, s *server) *Control {
	t.Helper()
	control := newClient(t, s).Control(controlIndex)
	if err := control.Open(t.Context()); err != nil {
		t.Fatal(err)
	}
	return control
}

func TestControlOpen(t *testing.T) {
	s := newServer()
	control := newClient(t, s).Control(controlIndex)
	var refused *Error
	if err := control.Check(t.Context()); !errors.As(err, &refused) || refused.Status != 404 || len(s.indices) != 0 {
		t.Errorf("Check of a missing index: %v", err)
	}
	for range 2 {
		if err := control.Open(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if err := control.Check(t.Context()); err != nil {
		t.Error(err)
	}
	want := map[string]any{
		"settings": map[string]any{"index": map[string]any{"number_of_shards": 1., "auto_expand_replicas": "0-1", "hidden": true}},
		"mappings": map[string]any{"dynamic": false, "_meta": map[string]any{"sluice": map[string]any{"kind": "control", "format": 1.}}},
	}
	if got := s.indices[controlIndex]; !reflect.DeepEqual(got, want) {
		t.Errorf("made as %v", got)
	}
}

func TestControlOpenRace(t *testing.T) {
	s := newServer()
	s.before = func(req *http.Request) *http.Response {
		if req.Method == http.MethodPut { // another replica is first
			s.before = nil
			openControl(t, s)
		}
		return nil
	}
	if err := newClient(t, s).Control(controlIndex).Open(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestControlOpenRefused(t *testing.T) {
	// Without rights the error is the manual.
	s := newServer()
	s.before = func(req *http.Request) *http.Response {
		if req.Method == http.MethodPut {
			return refusal(403, "security_exception", "not allowed")
		}
		return nil
	}
	err := newClient(t, s).Control(controlIndex).Open(t.Context())
	for _, want := range []string{"403", "security_exception", "PUT /" + controlIndex, `"hidden": true`, "create_index", "view_index_metadata"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("no %s in: %v", want, err)
		}
	}
	// An index of somebody else's is left alone.
	for name, mapping := range map[string]string{
		"no meta":      `{"mappings":{}}`,
		"another kind": `{"mappings":{"_meta":{"sluice":{"kind":"partition"}}}}`,
		"newer":        `{"mappings":{"_meta":{"sluice":{"kind":"control","format":2}}}}`,
	} {
		s := newServer()
		var made map[string]any
		if err := json.Unmarshal([]byte(mapping), &made); err != nil {
			t.Fatal(err)
		}
		s.indices[controlIndex] = made
		if err := newClient(t, s).Control(controlIndex).Open(t.Context()); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

type thing struct {
	Number int64  `json:"number"`
	Text   string `json:"text"`
}

func TestControlDocuments(t *testing.T) {
	ctx := t.Context()
	control := openControl(t, newServer())
	for _, id := range []string{"generation:events", "parked:group/1:events-ä:t?x#y:0 %2F"} {
		var got thing
		if _, _, err := control.Get(ctx, id, &got); !errors.Is(err, ErrNotFound) {
			t.Errorf("%s: Get of what is absent: %v", id, err)
		}
		first := thing{1<<62 + 1, "<a&b>"} // beyond what a float holds
		if err := control.Create(ctx, id, first); err != nil {
			t.Fatal(err)
		}
		seqNo, term, err := control.Get(ctx, id, &got)
		if err != nil || got != first {
			t.Fatalf("%s: %+v, %v", id, got, err)
		}

		var conflict *ConflictError
		err = control.Create(ctx, id, thing{})
		if !errors.Is(err, ErrConflict) || !errors.As(err, &conflict) || conflict.SeqNo != seqNo || conflict.PrimaryTerm != term {
			t.Fatalf("%s: second Create: %v", id, err)
		}
		if err := json.Unmarshal(conflict.Current, &got); err != nil || got != first || conflict.ID != id {
			t.Errorf("%s: the conflict carries %s of %s", id, conflict.Current, conflict.ID)
		}

		second := thing{2, "b"}
		if err := control.Update(ctx, id, second, seqNo, term); err != nil {
			t.Fatal(err)
		}
		if err := control.Update(ctx, id, thing{}, seqNo, term); !errors.Is(err, ErrConflict) {
			t.Errorf("%s: Update of an old version: %v", id, err)
		}
		if err := control.Delete(ctx, id, seqNo, term); !errors.Is(err, ErrConflict) {
			t.Errorf("%s: Delete of an old version: %v", id, err)
		}
		seqNo, term, err = control.Get(ctx, id, &got)
		if err != nil || got != second {
			t.Errorf("%s: %+v, %v", id, got, err)
		}
		if err := control.Delete(ctx, id, seqNo, term); err != nil {
			t.Error(err)
		}
		err = control.Update(ctx, id, second, seqNo, term)
		if !errors.As(err, &conflict) || conflict.Current != nil {
			t.Errorf("%s: Update of what is gone: %v", id, err)
		}
	}
}

// Only the answer that says so is an absent document: an index that is missing
// and a proxy that answers for itself must not make anyone start afresh.
func TestControlNotFound(t *testing.T) {
	for name, rt := range map[string]roundTripper{
		"missing index": func(*http.Request) (*http.Response, error) {
			return refusal(404, "index_not_found_exception", "no such index"), nil
		},
		"a proxy's page":  answering(404, "<html>not found</html>"),
		"nothing":         answering(404, ""),
		"wrong path":      answering(404, `{"error":"no handler"}`),
		"not a document":  answering(200, `{"found":true}`),
		"something else":  answering(200, `{}`),
		"found elsewhere": answering(200, `{"found":false}`),
	} {
		control := newClient(t, rt).Control(controlIndex)
		if _, _, err := control.Get(t.Context(), "x", new(any)); err == nil || errors.Is(err, ErrNotFound) {
			t.Errorf("%s: Get: %v", name, err)
		}
		if err := control.Delete(t.Context(), "x", 1, 1); errors.Is(err, ErrNotFound) {
			t.Errorf("%s: Delete: %v", name, err)
		}
	}
}

func TestControlErrorsByBehaviour(t *testing.T) {
	var n interface{ NotFound() bool }
	var c interface{ Conflict() bool }
	if !errors.As(ErrNotFound, &n) || !n.NotFound() {
		t.Error("ErrNotFound does not say so")
	}
	if !errors.As(error(&ConflictError{}), &c) || !c.Conflict() {
		t.Error("ConflictError does not say so")
	}
	control := openControl(t, newServer())
	if err := control.Create(t.Context(), "x", func() {}); err == nil {
		t.Error("a function was stored")
	}
}

// What stands between may answer 200 to everything: a write that nobody has
// confirmed is an error.
func TestControlWritesBelieveTheirOwnAnswerOnly(t *testing.T) {
	ctx := t.Context()
	for name, lie := range map[string]string{
		"page":         "<html>",
		"nothing":      "",
		"empty object": `{}`,
		"null":         `null`,
		"no term":      `{"_id":"a","result":"RESULT","_seq_no":7}`,
		"another id":   `{"_id":"b","result":"RESULT","_seq_no":7,"_primary_term":1}`,
		"not done":     `{"_id":"a","result":"noop","_seq_no":7,"_primary_term":1}`,
	} {
		s := newServer()
		control := openControl(t, s)
		s.before = func(req *http.Request) *http.Response {
			result := map[string]string{http.MethodPut: "created", http.MethodDelete: "deleted"}[req.Method]
			if req.URL.Query().Has("if_seq_no") && req.Method != http.MethodDelete {
				result = "updated"
			}
			return answer(200, strings.ReplaceAll(lie, "RESULT", result))
		}
		for call, err := range map[string]error{
			"Create": control.Create(ctx, "a", thing{}),
			"Update": control.Update(ctx, "a", thing{}, 6, 1),
			"Delete": control.Delete(ctx, "a", 6, 1),
		} {
			if err == nil || errors.Is(err, ErrConflict) || errors.Is(err, ErrNotFound) {
				t.Errorf("%s: %s: %v", name, call, err)
			}
		}
	}
}
