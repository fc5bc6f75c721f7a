package partition

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"
)

const patternRemedy = `write a customer, or a pattern such as acme-*, with \* and \\ for a star and a backslash of its own`

// pattern is a customer, or what several customers have in common.
type pattern struct {
	text string
	// parts are the texts between the stars: one part for a customer.
	parts [][]byte
	// literal is how many bytes the parts have.
	literal int
}

// parsePattern reads one key of overrides or one entry of the read rules.
func parsePattern(s string) (p pattern, err error) {
	p.text = s
	if !utf8.ValidString(s) {
		return p, errors.New("is not UTF-8")
	}
	part := []byte{}
	for i := 0; i < len(s); i++ {
		switch c := s[i]; c {
		case '*':
			p.parts = append(p.parts, part)
			part = []byte{}
		case '\\':
			if i++; i == len(s) || s[i] != '*' && s[i] != '\\' {
				return pattern{}, errors.New(`has a backslash before neither * nor \`)
			}
			fallthrough
		default:
			part = append(part, s[i])
			p.literal++
		}
	}
	p.parts = append(p.parts, part)
	if p.literal == 0 && p.exact() {
		return pattern{}, errors.New("is empty")
	}
	if p.literal > MaxCustomer {
		return pattern{}, fmt.Errorf("is longer than the %d bytes of a customer", MaxCustomer)
	}
	return p, nil
}

// Literal returns the pattern that is this customer and no other: the key to
// use in Table.Overrides and Read.
func Literal(customer string) string {
	return strings.NewReplacer(`\`, `\\`, `*`, `\*`).Replace(customer)
}

// exact says whether p is a customer.
func (p pattern) exact() bool { return len(p.parts) == 1 }

// matches says whether a customer fits. Taking each part where it first occurs
// is exact: it leaves the most to the parts that follow.
func (p pattern) matches(customer []byte) bool {
	first, last := p.parts[0], p.parts[len(p.parts)-1]
	if p.exact() {
		return bytes.Equal(customer, first)
	}
	if len(customer) < len(first)+len(last) || !bytes.HasPrefix(customer, first) || !bytes.HasSuffix(customer, last) {
		return false
	}
	rest := customer[len(first) : len(customer)-len(last)]
	for _, part := range p.parts[1 : len(p.parts)-1] {
		i := bytes.Index(rest, part)
		if i < 0 {
			return false
		}
		rest = rest[i+len(part):]
	}
	return true
}
