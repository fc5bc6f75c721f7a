package migrate

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"maps"
	"math/big"
	"slices"
	"strconv"
	"strings"

	"github.com/cespare/xxhash/v2"
)

// sum is the digest of a set of documents. Sums, not exclusive or: the order
// does not matter, two equal documents do not cancel, and digests of disjoint
// scans add up.
type sum struct{ count, a, b uint64 }

// add adds a document. content is 0 where only id and version count.
func (s *sum) add(id string, version int64, content uint64) {
	var d xxhash.Digest
	for seed, into := range map[uint64]*uint64{1: &s.a, 2: &s.b} {
		d.ResetWithSeed(seed)
		_, _ = d.WriteString(id)                              // it never fails
		var tail [17]byte                                     // a zero byte ends the id, which has none
		binary.BigEndian.PutUint64(tail[1:], uint64(version)) //nolint:gosec // versions are not negative
		binary.BigEndian.PutUint64(tail[9:], content)
		_, _ = d.Write(tail[:])
		*into += d.Sum64()
	}
	s.count++
}

// bucketCount is how many digests a large customer has, so that a difference is
// narrowed before ids are fetched.
const bucketCount = 256

func bucketOf(id string) int { return int(xxhash.Sum64String(id) >> 56) }

// contentHash is that of a document's canonical form: keys sorted, numbers by
// their value, no white space; without the fields to be ignored at the top.
func contentHash(source json.RawMessage, ignore []string) (uint64, error) {
	d := json.NewDecoder(bytes.NewReader(source))
	d.UseNumber()
	var v any
	if err := d.Decode(&v); err != nil {
		return 0, fmt.Errorf("a document is no JSON")
	}
	if top, ok := v.(map[string]any); ok {
		for _, name := range ignore {
			delete(top, name)
		}
	}
	return xxhash.Sum64(appendCanonical(nil, v)), nil
}

func appendCanonical(dst []byte, v any) []byte {
	switch v := v.(type) {
	case map[string]any:
		dst = append(dst, '{')
		for _, key := range slices.Sorted(maps.Keys(v)) {
			dst = append(strconv.AppendQuote(dst, key), ':')
			dst = append(appendCanonical(dst, v[key]), ',')
		}
		return append(dst, '}')
	case []any:
		dst = append(dst, '[')
		for _, e := range v {
			dst = append(appendCanonical(dst, e), ',')
		}
		return append(dst, ']')
	case json.Number:
		return append(dst, canonicalNumber(string(v))...)
	case string:
		return strconv.AppendQuote(dst, v)
	case bool:
		return strconv.AppendBool(dst, v)
	default:
		return append(dst, "null"...)
	}
}

// canonicalNumber writes a number by its value: 1.0, 1e0 and 1 are one. Beyond
// 1,000 digits it is compared as it is written.
func canonicalNumber(text string) string {
	if !strings.ContainsAny(text, ".eE") {
		if text == "-0" {
			return "0"
		}
		return text
	}
	if _, exponent, ok := strings.Cut(strings.ToLower(text), "e"); ok {
		if n, err := strconv.Atoi(exponent); err != nil || n > 1000 || n < -1000 {
			return strings.ToLower(text)
		}
	}
	r, ok := new(big.Rat).SetString(text)
	if !ok {
		return text
	}
	return r.RatString()
}
