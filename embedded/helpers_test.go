package embedded

import (
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

type (
	kmsgCommit         = kmsg.OffsetCommitRequest
	kmsgCommitResponse = kmsg.OffsetCommitResponse
)

// pass lets time pass in a synctest bubble.
func pass(d time.Duration) { <-time.After(d) }

// do sends a request and returns its status and body.
func do(t *testing.T, es *Elasticsearch, method, path, body string) (int, string) {
	t.Helper()
	status, text, err := try(t, es, method, path, body)
	if err != nil {
		t.Fatalf("%s %s: %v", method, path, err)
	}
	return status, text
}

func try(t *testing.T, es *Elasticsearch, method, path, body string) (int, string, error) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, "http://embedded"+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := es.Transport().RoundTrip(req)
	if err != nil {
		return 0, "", err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	return resp.StatusCode, string(b), err
}

// must sends a request that has to succeed.
func must(t *testing.T, es *Elasticsearch, method, path, body string) string {
	t.Helper()
	status, text := do(t, es, method, path, body)
	if status >= 300 {
		t.Fatalf("%s %s: %d %s", method, path, status, text)
	}
	return text
}

type bulkAnswer struct {
	Errors bool
	Items  []map[string]bulkItemAnswer
}

type bulkItemAnswer struct {
	Index   string `json:"_index"`
	ID      string `json:"_id"`
	Version int64  `json:"_version"`
	Seq     int64  `json:"_seq_no"`
	Result  string
	Status  int
	Error   struct{ Type, Reason string }
}

// bulk sends lines and returns the items.
func bulk(t *testing.T, es *Elasticsearch, lines ...string) []bulkItemAnswer {
	t.Helper()
	text := must(t, es, http.MethodPost, "/_bulk", strings.Join(lines, "\n")+"\n")
	return decodeBulk(t, text)
}

func decodeBulk(t *testing.T, text string) []bulkItemAnswer {
	t.Helper()
	var a bulkAnswer
	if err := json.Unmarshal([]byte(text), &a); err != nil {
		t.Fatalf("%v in %s", err, text)
	}
	var out []bulkItemAnswer
	for _, i := range a.Items {
		for _, v := range i {
			out = append(out, v)
		}
	}
	return out
}
