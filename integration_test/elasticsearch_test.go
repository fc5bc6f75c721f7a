//go:build integration

package integration_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"
)

// Elasticsearch is one real node, of Elasticsearch or OpenSearch.
type Elasticsearch struct {
	*server
	// asAdmin sends a request to a path of a node that lets only some in; nil:
	// everybody may.
	asAdmin func(ctx context.Context, method, path string, body []byte) ([]byte, error)
}

// elasticsearchOptions says which node a test wants.
type elasticsearchOptions struct {
	// OpenSearch asks for OpenSearch instead; the test is skipped where its
	// image is not there.
	OpenSearch bool
	// Settings are the node's, by name. With any the node is the test's own.
	Settings map[string]string
}

// startElasticsearch gives the node that tests share, or, with settings, a node
// for this test alone.
func startElasticsearch(t *testing.T, options elasticsearchOptions) *Elasticsearch {
	t.Helper()
	// C1 only: half the CPU of a start, and tests are short.
	const java = "-Xms512m -Xmx512m -XX:TieredStopAtLevel=1"
	name, image := "elasticsearch", os.Getenv(elasticsearchImage)
	env := map[string]string{
		"discovery.type":         "single-node",
		"xpack.security.enabled": "false",
		"ES_JAVA_OPTS":           java,
		// A nearly full disk of a developer is no reason for a block.
		"cluster.routing.allocation.disk.threshold_enabled": "false",
	}
	if options.OpenSearch {
		name, image = "opensearch", os.Getenv(openSearchImage)
		if image == "" {
			t.Skipf("%s is not set: servers/up.sh opensearch prints it", openSearchImage)
		}
		delete(env, "xpack.security.enabled")
		delete(env, "ES_JAVA_OPTS")
		env["OPENSEARCH_JAVA_OPTS"] = java
		env["DISABLE_SECURITY_PLUGIN"] = "true"
	}
	maps.Copy(env, options.Settings)
	spec := elasticsearchSpec(image, env)
	if options.Settings != nil {
		return &Elasticsearch{server: ownServer(t, spec)}
	}
	return &Elasticsearch{server: sharedServer(t, name, spec)}
}

func elasticsearchSpec(image string, env map[string]string) serverSpec {
	return serverSpec{
		image: image,
		port:  9200,
		env:   func(int) map[string]string { return env },
		ready: func(ctx context.Context, address string) error {
			_, err := request(ctx, http.MethodGet, "http://"+address+"/_cluster/health?wait_for_status=yellow&timeout=1s", nil)
			return err
		},
	}
}

// URL is the node's base URL.
func (e *Elasticsearch) URL() string { return "http://" + e.address }

// Healthy fails unless the cluster answers and is at least yellow.
func (e *Elasticsearch) Healthy(ctx context.Context) error {
	_, err := e.request(ctx, http.MethodGet, "/_cluster/health?wait_for_status=yellow&timeout=1s", nil)
	return err
}

func (e *Elasticsearch) request(ctx context.Context, method, path string, body []byte) ([]byte, error) {
	if e.asAdmin != nil {
		return e.asAdmin(ctx, method, path, body)
	}
	return request(ctx, method, e.URL()+path, body)
}

// Do sends a request and gives the answer; it fails the test unless that is
// 2xx. body is sent as JSON, for _bulk as lines of it.
func (e *Elasticsearch) Do(t *testing.T, method, path, body string) []byte {
	t.Helper()
	answer, err := e.request(t.Context(), method, path, []byte(body))
	if err != nil {
		t.Fatal(err)
	}
	return answer
}

// CreateIndex makes an index without replicas, with a mapping, and removes it
// after the test.
func (e *Elasticsearch) CreateIndex(t *testing.T, index, mappings string) {
	t.Helper()
	e.Do(t, http.MethodPut, "/"+index, `{"settings":{"number_of_shards":2,"number_of_replicas":0,"refresh_interval":"-1"},"mappings":`+mappings+`}`)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if _, err := e.request(ctx, http.MethodDelete, "/"+index, nil); err != nil {
			t.Error(err)
		}
	})
}

// Documents gives the source of each document of an index, by id, byte for byte.
func (e *Elasticsearch) Documents(t *testing.T, index string) map[string]string {
	t.Helper()
	e.Do(t, http.MethodPost, "/"+index+"/_refresh", "")
	documents := map[string]string{}
	type page struct {
		ScrollID string `json:"_scroll_id"`
		Hits     struct {
			Hits []struct {
				ID     string          `json:"_id"`
				Source json.RawMessage `json:"_source"`
			} `json:"hits"`
		} `json:"hits"`
	}
	// Elasticsearch and OpenSearch spell points in time differently; a scroll
	// is the same in both.
	answer := e.Do(t, http.MethodPost, "/"+index+"/_search?scroll=1m&size=5000", `{"sort":["_doc"]}`)
	for {
		var p page
		if err := json.Unmarshal(answer, &p); err != nil {
			t.Fatal(err)
		}
		scroll, _ := json.Marshal(map[string]string{"scroll_id": p.ScrollID, "scroll": "1m"})
		if len(p.Hits.Hits) == 0 {
			e.Do(t, http.MethodDelete, "/_search/scroll", `{"scroll_id":"`+p.ScrollID+`"}`)
			return documents
		}
		for _, hit := range p.Hits.Hits {
			documents[hit.ID] = string(hit.Source)
		}
		answer = e.Do(t, http.MethodPost, "/_search/scroll", string(scroll))
	}
}

// request sends one request on a connection of its own, so that a connection
// to a server that was killed is never used again.
func request(ctx context.Context, method, url string, body []byte) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, url, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Close = true
	req.Header.Set("Content-Type", "application/json")
	if strings.Contains(url, "_bulk") {
		req.Header.Set("Content-Type", "application/x-ndjson")
	}
	return answerOf(http.DefaultClient.Do(req))
}

// answerOf reads an answer; it is an error unless it is 2xx.
func answerOf(resp *http.Response, err error) ([]byte, error) {
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode/100 != 2 {
		err = fmt.Errorf("%s %s: %s: %.500s", resp.Request.Method, resp.Request.URL, resp.Status, answer)
	}
	return answer, err
}

// compare fails the test with the number and a few examples of the documents
// that are missing, differ or should not be there.
func compare(t *testing.T, got, want map[string]string) {
	t.Helper()
	const examples = 3
	var missing, differing, extra int
	for id, document := range want {
		switch stored, found := got[id]; {
		case !found:
			if missing++; missing <= examples {
				t.Errorf("missing: %q", id)
			}
		case stored != document:
			if differing++; differing <= examples {
				t.Errorf("%q is %.200s, not %.200s", id, stored, document)
			}
		}
	}
	for id := range got {
		if _, expected := want[id]; !expected {
			if extra++; extra <= examples {
				t.Errorf("should not be there: %q", id)
			}
		}
	}
	if missing+differing+extra > 0 {
		t.Errorf("of %d documents %d are missing and %d differ; %d others are there", len(want), missing, differing, extra)
	}
}
