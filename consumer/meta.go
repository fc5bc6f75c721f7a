package consumer

import (
	"encoding/binary"
	"errors"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/sluicehq/sluice/document"
)

// The flags that begin an encoded meta.
const (
	metaKey    = 1 << iota // the record has a key
	metaOwn                // the record's value is kept here: the document differs from it
	metaValue              // with metaOwn: the value is not null
	metaLegacy             // the action is the legacy side's
	metaNew                // the action is the new side's
	metaTwin               // the record has an action on either side: its customer is kept
)

var errMeta = errors.New("consumer: damaged record meta")

// sideOf is the side whose flags these are.
func sideOf(flags byte) document.Side {
	switch {
	case flags&metaLegacy != 0:
		return document.SideLegacy
	case flags&metaNew != 0:
		return document.SideNew
	default:
		return document.SideNone
	}
}

// sideFlags are the flags of a side's action.
func sideFlags(s document.Side) byte {
	switch s {
	case document.SideLegacy:
		return metaLegacy
	case document.SideNew:
		return metaNew
	default:
		return 0
	}
}

// appendMeta encodes what a dead letter needs of rec and the action does not
// hold: key, timestamp (milliseconds), headers, and with value the value.
func appendMeta(dst []byte, rec *kgo.Record, value bool) []byte {
	return appendSideMeta(dst, rec, value, 0, nil)
}

// appendSideMeta is appendMeta for an action of a routed stream: flags are those
// of its side, and metaTwin, with which the customer is kept too.
func appendSideMeta(dst []byte, rec *kgo.Record, value bool, flags byte, customer []byte) []byte {
	if rec.Key != nil {
		flags |= metaKey
	}
	if value {
		flags |= metaOwn
		if rec.Value != nil {
			flags |= metaValue
		}
	}
	dst = append(dst, flags)
	dst = binary.AppendVarint(dst, rec.Timestamp.UnixMilli())
	if rec.Key != nil {
		dst = appendBytes(dst, rec.Key)
	}
	if flags&metaValue != 0 {
		dst = appendBytes(dst, rec.Value)
	}
	if flags&metaTwin != 0 {
		dst = appendBytes(dst, customer)
	}
	dst = binary.AppendUvarint(dst, uint64(len(rec.Headers)))
	for i := range rec.Headers {
		h := &rec.Headers[i]
		dst = binary.AppendUvarint(dst, uint64(len(h.Key)))
		dst = append(dst, h.Key...)
		if h.Value == nil && !mutantNull {
			dst = append(dst, 0)
			continue
		}
		dst = binary.AppendUvarint(dst, uint64(len(h.Value))+1)
		dst = append(dst, h.Value...)
	}
	return dst
}

func appendBytes(dst, b []byte) []byte {
	dst = binary.AppendUvarint(dst, uint64(len(b)))
	return append(dst, b...)
}

// meta is a decoded meta. Its slices are parts of what was decoded.
type meta struct {
	timestamp time.Time
	key       []byte
	value     []byte
	ownValue  bool // value is the record's, nil included; else the document is
	headers   []kgo.RecordHeader
	side      document.Side
	twin      bool   // the record has an action on the other side too
	customer  []byte // of a record with two actions
}

// decodeMeta is the inverse of appendMeta. An empty meta is one of a record
// whose rejection needs none.
func decodeMeta(b []byte) (m meta, err error) {
	if len(b) == 0 {
		return m, nil
	}
	d := metaReader{b: b[1:]}
	flags := b[0]
	m.timestamp = time.UnixMilli(d.varint())
	if flags&metaKey != 0 {
		m.key = d.bytes(d.uvarint())
	}
	m.ownValue = flags&metaOwn != 0
	if flags&metaValue != 0 {
		m.value = d.bytes(d.uvarint())
	}
	switch flags & (metaLegacy | metaNew) {
	case 0:
	case metaLegacy:
		m.side = document.SideLegacy
	case metaNew:
		m.side = document.SideNew
	default:
		return meta{}, errMeta
	}
	if flags&metaTwin != 0 {
		m.twin = true
		m.customer = d.bytes(d.uvarint())
	}
	n := d.uvarint()
	if n > uint64(len(d.b)) { // a header has two bytes at least
		return meta{}, errMeta
	}
	if n > 0 {
		m.headers = make([]kgo.RecordHeader, n)
	}
	for i := range m.headers {
		m.headers[i].Key = string(d.bytes(d.uvarint()))
		if n := d.uvarint(); n > 0 {
			m.headers[i].Value = d.bytes(n - 1)
		}
	}
	if d.bad || len(d.b) > 0 || flags >= metaTwin<<1 {
		return meta{}, errMeta
	}
	return m, nil
}

// metaReader reads from b; the first thing that does not fit sets bad.
type metaReader struct {
	b   []byte
	bad bool
}

func (d *metaReader) varint() int64 {
	v, n := binary.Varint(d.b)
	return advance(d, v, n)
}

func (d *metaReader) uvarint() uint64 {
	v, n := binary.Uvarint(d.b)
	return advance(d, v, n)
}

func advance[T int64 | uint64](d *metaReader, v T, n int) T {
	if n <= 0 {
		d.bad, d.b = true, nil
		return 0
	}
	d.b = d.b[n:]
	return v
}

func (d *metaReader) bytes(n uint64) []byte {
	if n > uint64(len(d.b)) {
		d.bad, d.b = true, nil
		return nil
	}
	p := d.b[:n:n]
	d.b = d.b[n:]
	return p
}
