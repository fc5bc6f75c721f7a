package embedded

import (
	"bytes"
	"fmt"
	"io"
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
	for _, mode := range []struct {
		name    string
		dynamic string
		sockets bool
	}{{"unmapped", "false", false}, {"mapped", "true", false}, {"sockets", "true", true}} {
		b.Run(mode.name, func(b *testing.B) {
			es := NewElasticsearch(Config{})
			defer es.Close()
			client := &http.Client{Transport: es.Transport()}
			base := "http://embedded"
			if mode.sockets {
				url, err := es.Start("127.0.0.1:0")
				if err != nil {
					b.Fatal(err)
				}
				client.Transport, base = &http.Transport{}, url
				defer client.CloseIdleConnections()
			}
			const docs = 4000
			send(b, client, http.MethodPut, base+"/bench", []byte(`{"mappings":{"dynamic":`+mode.dynamic+`}}`))
			bodies := make([][]byte, 4)
			for i := range bodies {
				bodies[i] = benchBody(docs, i)
			}
			b.SetBytes(int64(len(bodies[0])))
			b.ReportAllocs()
			n := 0
			for b.Loop() {
				if n++; n%len(bodies) == 0 {
					b.StopTimer()
					for i := range bodies {
						bodies[i] = benchBody(docs, n+i)
					}
					b.StartTimer()
				}
				send(b, client, http.MethodPost, base+"/_bulk?filter_path=errors,items.*.error,items.*.status", bodies[n%len(bodies)])
			}
			b.ReportMetric(float64(docs*b.N)/b.Elapsed().Seconds(), "docs/s")
		})
	}
}

func send(b *testing.B, client *http.Client, method, url string, body []byte) {
	b.Helper()
	req, err := http.NewRequestWithContext(b.Context(), method, url, bytes.NewReader(body))
	if err != nil {
		b.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := client.Do(req)
	if err != nil {
		b.Fatal(err)
	}
	defer resp.Body.Close()
	if _, err := io.Copy(io.Discard, resp.Body); err != nil || resp.StatusCode != http.StatusOK {
		b.Fatal(resp.Status, err)
	}
}
