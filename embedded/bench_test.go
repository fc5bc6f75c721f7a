package embedded

import (
	"bytes"
	"fmt"
	"net/http"
	"strings"
	"testing"
)

// benchBody returns a bulk request of n documents of about 1 KB, as Sluice
// sends them.
func benchBody(n, round int) []byte {
	var b bytes.Buffer
	for i := range n {
		fmt.Fprintf(&b, `{"index":{"_index":"bench","_id":"key-%d","version":%d,"version_type":"external"}}`+"\n", i, round+1)
		fmt.Fprintf(&b, `{"user":"u%d","n":%d,"ok":true,"score":%d.5,"tags":["a","b","c"],"geo":{"lat":48.1,"lon":11.5},"text":"%s"}`+"\n", i, i, i, strings.Repeat("lorem ipsum ", 75))
	}
	return b.Bytes()
}

func BenchmarkBulk(b *testing.B) {
	for _, dynamic := range []string{"false", "true"} {
		b.Run("dynamic="+dynamic, func(b *testing.B) {
			es := NewElasticsearch(Config{})
			defer es.Close()
			const docs = 4000
			send(b, es, http.MethodPut, "/bench", []byte(`{"mappings":{"dynamic":`+dynamic+`}}`))
			body := benchBody(docs, 0)
			b.SetBytes(int64(len(body)))
			b.ReportAllocs()
			n := 0
			for b.Loop() {
				b.StopTimer()
				n++
				body = benchBody(docs, n)
				b.StartTimer()
				send(b, es, http.MethodPost, "/_bulk?filter_path=errors,items.*.error,items.*.status", body)
			}
			b.ReportMetric(float64(docs*b.N)/b.Elapsed().Seconds(), "docs/s")
		})
	}
}

func send(b *testing.B, es *Elasticsearch, method, path string, body []byte) {
	b.Helper()
	req, err := http.NewRequestWithContext(b.Context(), method, "http://embedded"+path, bytes.NewReader(body))
	if err != nil {
		b.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := es.Transport().RoundTrip(req)
	if err != nil {
		b.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		b.Fatal(resp.Status)
	}
}
