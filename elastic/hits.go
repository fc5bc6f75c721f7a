package elastic

import (
	"bytes"
	"encoding/json"
	"strconv"
	"unicode/utf8"
)

// A decoder reads an answer of its own shape quickly. Where it finds anything
// that it does not expect, it says so, and encoding/json has the last word.
type decoder interface{ decode(body []byte) bool }

// searchAnswer is the answer to a search. With thousands of documents in a page,
// most of what a copy costs here would be reading it: encoding/json looks at each
// byte of a document three times and copies it, decode passes over it once and
// keeps it where it is.
type searchAnswer struct {
	TimedOut bool       `json:"timed_out"`
	Shards   shardsPart `json:"_shards"`
	Hits     struct {
		Total totalPart `json:"total"`
		Hits  []Hit     `json:"hits"`
	} `json:"hits"`
}

type shardsPart struct {
	Total  int `json:"total"`
	Failed int `json:"failed"`
}

type totalPart struct {
	Value int64 `json:"value"`
}

// decode implements decoder. It leaves a alone unless it returns true. The
// documents of the hits are parts of body.
func (a *searchAnswer) decode(body []byte) bool {
	var got searchAnswer
	c := cursor{b: body}
	ok := c.object(func(key []byte) bool {
		switch string(key) {
		case "timed_out":
			return c.small(&got.TimedOut)
		case "_shards":
			return c.small(&got.Shards)
		case "hits":
			return c.object(func(key []byte) bool {
				switch string(key) {
				case "total":
					return c.small(&got.Hits.Total)
				case "hits":
					return c.array(func() bool {
						var hit Hit
						got.Hits.Hits = append(got.Hits.Hits, hit)
						return c.hit(&got.Hits.Hits[len(got.Hits.Hits)-1])
					})
				}
				return c.skip()
			})
		}
		return c.skip()
	})
	if ok && c.space() == 0 && c.at == len(body) {
		*a = got
		return true
	}
	return false
}

// hit reads one hit.
func (c *cursor) hit(h *Hit) bool {
	return c.object(func(key []byte) bool {
		switch string(key) {
		case "_index":
			return c.text(&h.Index)
		case "_id":
			return c.text(&h.ID)
		case "_routing":
			return c.text(&h.Routing)
		case "_version":
			return c.number(&h.Version)
		case "_seq_no":
			return c.number(&h.SeqNo)
		case "_source":
			return c.raw(&h.Source)
		case "sort":
			return c.raw(&h.Sort)
		}
		return c.skip()
	})
}

// A cursor passes over JSON. Each method leaves it behind what it has read, or
// returns false: then there is something that it does not expect.
type cursor struct {
	b  []byte
	at int
}

// space passes white space and returns what follows; 0 at the end.
func (c *cursor) space() byte {
	for ; c.at < len(c.b); c.at++ {
		switch b := c.b[c.at]; b {
		case ' ', '\n', '\r', '\t':
		default:
			return b
		}
	}
	return 0
}

// next passes white space and a byte, if it is that one.
func (c *cursor) next(b byte) bool {
	if c.space() != b {
		return false
	}
	c.at++
	return true
}

// object reads an object; value reads the value of a key.
func (c *cursor) object(value func(key []byte) bool) bool {
	if !c.next('{') {
		return false
	}
	if c.next('}') {
		return true
	}
	for {
		key, plain := c.quoted()
		if !plain || !c.next(':') || !value(key) {
			return false
		}
		if !c.next(',') {
			return c.next('}')
		}
	}
}

// array reads an array; value reads each of its values.
func (c *cursor) array(value func() bool) bool {
	if !c.next('[') {
		return false
	}
	if c.next(']') {
		return true
	}
	for {
		if !value() {
			return false
		}
		if !c.next(',') {
			return c.next(']')
		}
	}
}

// quoted reads a string as it stands between its quotes; plain: that is what it
// says. It returns false, too, where there is none.
func (c *cursor) quoted() (text []byte, plain bool) {
	if !c.next('"') {
		return nil, false
	}
	from := c.at
	plain = true
	for {
		n := bytes.IndexByte(c.b[c.at:], '"')
		if n < 0 {
			c.at = len(c.b)
			return nil, false
		}
		escape := bytes.IndexByte(c.b[c.at:c.at+n], '\\')
		if escape < 0 {
			text = c.b[from : c.at+n]
			c.at += n + 1
			return text, plain
		}
		plain = false
		c.at = min(c.at+escape+2, len(c.b)) // behind what is escaped
	}
}

// text reads a string.
func (c *cursor) text(into *string) bool {
	if c.space() != '"' {
		return false
	}
	from := c.at
	text, plain := c.quoted()
	if plain && utf8.Valid(text) {
		*into = string(text)
		return true
	}
	return json.Unmarshal(c.b[from:c.at], into) == nil
}

// number reads a whole number.
func (c *cursor) number(into *int64) bool {
	c.space()
	from := c.at
	if !c.skip() {
		return false
	}
	n, err := strconv.ParseInt(string(c.b[from:c.at]), 10, 64)
	*into = n
	return err == nil
}

// raw reads a value as it stands.
func (c *cursor) raw(into *json.RawMessage) bool {
	c.space()
	from := c.at
	if !c.skip() {
		return false
	}
	*into = c.b[from:c.at:c.at]
	return true
}

// small reads a value that is cheap to read.
func (c *cursor) small(into any) bool {
	var text json.RawMessage
	return c.raw(&text) && json.Unmarshal(text, into) == nil
}

// skip passes one value, whose brackets match in number.
func (c *cursor) skip() bool {
	switch c.space() {
	case '"':
		return c.pass()
	case '{', '[':
	default:
		from := c.at
		for c.at < len(c.b) && bytes.IndexByte([]byte(",]} \n\r\t"), c.b[c.at]) < 0 {
			c.at++
		}
		return c.at > from
	}
	for depth := 0; c.at < len(c.b); {
		switch c.b[c.at] {
		case '"':
			if !c.pass() {
				return false
			}
			continue
		case '{', '[':
			depth++
		case '}', ']':
			depth--
		}
		c.at++
		if depth == 0 {
			return true
		}
	}
	return false
}

// pass passes a string, whatever it says.
func (c *cursor) pass() bool {
	text, _ := c.quoted()
	return text != nil
}
