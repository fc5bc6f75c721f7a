package scenarios

import (
	"encoding/json"
	"fmt"
	"math"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/twmb/franz-go/pkg/kgo"
)

// strange are records that are in order, if only in a way that nobody thought
// of, by what is strange about them.
func strange() []documentCase {
	headers := make([]kgo.RecordHeader, 10_000)
	for i := range headers {
		headers[i] = kgo.RecordHeader{Key: fmt.Sprint(i % 7), Value: []byte{byte(i)}}
	}
	var fields strings.Builder
	for i := range 100_000 {
		fmt.Fprintf(&fields, `"%s":1,`, strconv.FormatInt(int64(i), 36)) // a batch of Kafka's holds 1 MB
	}
	at := func(milli int64) *kgo.Record {
		return &kgo.Record{Value: []byte(`{"a":1}`), Timestamp: time.UnixMilli(milli)}
	}
	key := func(k string) *kgo.Record { return &kgo.Record{Key: []byte(k), Value: []byte(`{"a":1}`)} }
	header := func(h ...kgo.RecordHeader) *kgo.Record {
		return &kgo.Record{Value: []byte(`{"a":1}`), Headers: h}
	}
	return []documentCase{
		{"100,000 fields", value("{" + fields.String() + `"Z":1}`), asIs, asIs},
		{"long number", value(`{"a":0.` + strings.Repeat("123456789", 10_000) + `e-5}`), asIs, asIs},
		{"NUL, escaped", value(`{"a\u0000b":"\u0000"}`), asIs, asIs},
		{"NUL", value("{\"a\":\"\x00\"}"), returned(400, parsing), refused("invalid_json")},
		{"NULs only", value("\x00\x00\x00"), refused("not_an_object"), refused("not_an_object")},
		{"NUL in the key", key("a\x00b"), asIs, asIs},
		{"key of an action", key("\"}}\n{\"delete\":{\"_id\":\"neighbour-0\"}}\n"), asIs, asIs},
		{"key of separators", key("\u2028\u2029\u0085\\\"/\x7f\x1f"), asIs, asIs},
		{"key of 100 kB", key(strings.Repeat("k", 100_000)), refused("id_too_long"), refused("id_too_long")},
		{"10,000 headers", header(headers...), asIs, asIs},
		{"header of 100 kB", header(kgo.RecordHeader{Key: strings.Repeat("h", 100_000), Value: make([]byte, 100_000)}), asIs, asIs},
		{"header that is no text", header(kgo.RecordHeader{Key: "\xff\x00", Value: []byte("\xfe")}, kgo.RecordHeader{}), asIs, asIs},
		{"10,000 headers and no object", &kgo.Record{Value: []byte("[]"), Headers: headers}, refused("not_an_object"), refused("not_an_object")},
		{"before 1970", at(-1), asIs, asIs},
		{"long before", at(-62_135_596_800_001), asIs, asIs},
		{"beyond all dates", at(math.MaxInt64 / 2), asIs, asIs},
	}
}

// Records that are strange in their keys, headers, times or size become what
// others become, byte for byte, and nothing of their neighbours is touched.
func TestStrangeRecords(t *testing.T) {
	tryDocuments(t, `{"dynamic":false}`, "", strange())
}

// The same where what is strange goes into the document: it stays one JSON
// object, whatever the record holds.
func TestStrangeRecordsInMetadata(t *testing.T) {
	eachValidate(t, func(t *testing.T, _ bool, validate change) {
		w := newWorld(t, worldOptions{})
		w.mapping(`{"dynamic":false}`)
		w.effect = nil // of what a document gains the program alone knows
		var all []*kgo.Record
		for i, c := range strange() {
			if c.record.Key == nil {
				c.record.Key = []byte(c.name)
			}
			all = append(all, c.record, record(fmt.Sprintf("neighbour-%d", i), i))
		}
		w.produce(all...)
		p := w.begin(`documents: {timestamp: record, metadata: {field: meta, include: [topic, partition, offset, timestamp, key, headers]}}`, validate)
		w.awaitDone(p)
		indexed, letters := p.outcomes("indexed"), p.outcomes("dead_lettered")
		docs := w.documents(index)
		if indexed+letters != len(all) || len(docs) != indexed || len(w.letters()) != letters || letters > 6 {
			t.Errorf("%d records: %d indexed, %d dead-lettered; %d documents, %d letters", len(all), indexed, letters, len(docs), len(w.letters()))
		}
		for id, source := range docs {
			var doc struct {
				Meta struct {
					Topic string `json:"topic"`
				} `json:"meta"`
			}
			if err := json.Unmarshal([]byte(source), &doc); err != nil || doc.Meta.Topic != topic || !utf8.ValidString(source) || strings.Contains(source, "\n") {
				t.Errorf("%.40q: %v: %.300q", id, err, source)
			}
		}
	})
}
