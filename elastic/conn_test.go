package elastic

import (
	"bytes"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
)

// selfWriter is a body that counts what it wrote by itself.
type selfWriter struct {
	bytes.Reader
	wrote int64
}

func (b *selfWriter) WriteTo(w io.Writer) (int64, error) {
	n, err := b.Reader.WriteTo(w)
	b.wrote += n
	return n, err
}

func (b *selfWriter) Close() error { return nil }

// A large body writes itself to a plain connection, and arrives whole.
func TestBodyWritesItself(t *testing.T) {
	got := make(chan []byte, 1)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		got <- b
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write([]byte(`{}`))
	}))
	defer server.Close()
	c, err := New(Config{Addresses: []string{server.URL}})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close(t.Context()) }()
	for _, size := range []int{10, 64 << 10, 65<<10 + 1, 4 << 20} {
		want := bytes.Repeat([]byte("0123456789abcdef"), size/16+1)[:size]
		body := new(selfWriter)
		body.Reset(want)
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "/_bulk", body)
		if err != nil {
			t.Fatal(err)
		}
		req.ContentLength = int64(size)
		resp, err := c.Perform(req)
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		if !bytes.Equal(<-got, want) {
			t.Errorf("%d bytes did not arrive as they were", size)
		}
		if size == 4<<20 && body.wrote < 3<<20 {
			t.Errorf("the body wrote %d of %d bytes itself", body.wrote, size)
		}
	}
}
