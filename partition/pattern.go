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
	// A customer is the prefix alone. Where there are stars, these are the texts
	// before the first, after the last and between the others.
	prefix, suffix []byte
	stars          bool
	between        [][]byte
	literal        int // bytes that are no star
	text           string
}

// parsePattern reads one key of overrides or one entry of the read rules.
func parsePattern(s string) (pattern, error) {
	p := pattern{text: s}
	if !utf8.ValidString(s) {
		return p, errors.New("is not UTF-8")
	}
	var parts [][]byte
	var part []byte
	for i := 0; i < len(s); i++ {
		if s[i] == '*' {
			parts, part = append(parts, part), nil
			continue
		}
		if s[i] == '\\' {
			if i++; i == len(s) || s[i] != '*' && s[i] != '\\' {
				return p, errors.New(`has a backslash before neither * nor \`)
			}
		}
		part = append(part, s[i])
		p.literal++
	}
	switch {
	case s == "":
		return p, errors.New("is empty")
	case p.literal > MaxCustomer:
		return p, fmt.Errorf("is longer than the %d bytes of a customer", MaxCustomer)
	case parts == nil:
		p.prefix = part
	default:
		p.stars, p.prefix, p.between, p.suffix = true, parts[0], parts[1:], part
	}
	return p, nil
}

// Literal returns the pattern that is this customer and no other: the key to
// use in Table.Overrides and Read.
func Literal(customer string) string {
	return strings.NewReplacer(`\`, `\\`, `*`, `\*`).Replace(customer)
}

// matches says whether a customer fits. Taking each text where it first occurs
// is exact: it leaves the most to those that follow.
func (p *pattern) matches(customer []byte) bool {
	if len(customer) < p.literal || string(customer[:len(p.prefix)]) != string(p.prefix) {
		return false
	}
	rest := customer[len(p.prefix):]
	if !p.stars {
		return len(rest) == 0
	}
	if !bytes.HasSuffix(rest, p.suffix) {
		return false
	}
	rest = rest[:len(rest)-len(p.suffix)]
	for _, text := range p.between {
		i := bytes.Index(rest, text)
		if i < 0 {
			return false
		}
		rest = rest[i+len(text):]
	}
	return true
}
