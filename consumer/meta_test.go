package consumer

import (
	"bytes"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

func FuzzMetaRoundTrip(f *testing.F) {
	f.Add([]byte("key"), []byte("value"), "h", []byte("v"), int64(1700000000123), uint8(0xff))
	f.Add([]byte{}, []byte{}, "", []byte{}, int64(-1), uint8(0))
	f.Add([]byte("k"), []byte(nil), "a", []byte(nil), int64(0), uint8(0b10101))
	f.Fuzz(func(t *testing.T, key, value []byte, hkey string, hvalue []byte, ms int64, shape uint8) {
		ms %= 1 << 52
		rec := &kgo.Record{Timestamp: time.UnixMilli(ms)}
		if shape&1 != 0 {
			rec.Key = notNil(key)
		}
		if shape&2 != 0 {
			rec.Value = notNil(value)
		}
		for i := range shape >> 4 {
			h := kgo.RecordHeader{Key: hkey}
			if i%2 == 0 {
				h.Value = notNil(hvalue)
			}
			rec.Headers = append(rec.Headers, h)
		}
		own := shape&4 != 0
		got, err := decodeMeta(appendMeta([]byte("x"), rec, own)[1:])
		if err != nil {
			t.Fatal(err)
		}
		if !got.timestamp.Equal(rec.Timestamp) || !same(got.key, rec.Key) || got.ownValue != own || own && !same(got.value, rec.Value) {
			t.Fatalf("%+v became %+v", rec, got)
		}
		if len(got.headers) != len(rec.Headers) {
			t.Fatalf("%d headers became %d", len(rec.Headers), len(got.headers))
		}
		for i, h := range rec.Headers {
			if got.headers[i].Key != h.Key || !same(got.headers[i].Value, h.Value) {
				t.Fatalf("header %d: %q became %q", i, h, got.headers[i])
			}
		}
	})
}

// FuzzDecodeMeta shows that damage is an error, never a panic or a huge
// allocation.
func FuzzDecodeMeta(f *testing.F) {
	f.Add(appendMeta(nil, &kgo.Record{Key: []byte("k"), Value: []byte("v"), Headers: []kgo.RecordHeader{{Key: "h"}}}, true))
	f.Add([]byte{0xff, 0xff, 0xff, 0xff, 0xff})
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := decodeMeta(b)
		if err == nil && len(m.key)+len(m.value)+len(m.headers) > len(b) {
			t.Fatalf("%d bytes became more", len(b))
		}
	})
}

func notNil(b []byte) []byte {
	if b == nil {
		return []byte{}
	}
	return b
}

func same(a, b []byte) bool { return (a == nil) == (b == nil) && bytes.Equal(a, b) }
