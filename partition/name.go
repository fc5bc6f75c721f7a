package partition

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"
)

// maxName is the longest index name that the server takes, in bytes.
const maxName = 255

// AppendName appends s as a part of an index name: everything but lower-case
// letters, digits and - _ . becomes =xx, byte by byte, upper case too, so that
// it can be read backwards and no two texts share a name. A separator (0: none)
// is escaped too, and with leads a first byte that is neither letter nor digit.
func AppendName[T string | []byte](dst []byte, s T, separator byte, leads bool) []byte {
	const hex = "0123456789abcdef"
	for i := range len(s) {
		c := s[i]
		if InName(c) && c != separator && (!leads || i > 0 || c != '-' && c != '_' && c != '.') {
			dst = append(dst, c)
			continue
		}
		dst = append(dst, '=', hex[c>>4], hex[c&15])
	}
	return dst
}

// InName says whether a byte stands in a name as it is.
func InName(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= '0' && c <= '9' || c == '-' || c == '_' || c == '.'
}

// Name returns a name that is a customer's alone among those with the same
// prefix and suffix. Where it would be longer than the server takes, the
// SHA-256 of the customer stands for it; =s cannot be an escape.
func Name(prefix, customer, suffix string) string {
	name := prefix + string(AppendName(nil, customer, 0, false)) + suffix
	if len(name) > maxName {
		name = fmt.Sprintf("%s=s%x%s", prefix, sha256.Sum256([]byte(customer)), suffix)
	}
	return name
}

// CheckCustomer says why a customer cannot be routed; nil: it can.
func CheckCustomer(customer []byte) error {
	switch {
	case len(customer) == 0:
		return errors.New("a customer is not empty")
	case len(customer) > MaxCustomer:
		return fmt.Errorf("a customer has %d bytes at most and this one has %d", MaxCustomer, len(customer))
	case !utf8.Valid(customer):
		return errors.New("a customer is UTF-8 and this one is not")
	}
	return nil
}

// CheckIndex returns what is wrong with the name of an index or alias, by the
// server's rules; "": nothing.
func CheckIndex(name string) string {
	switch {
	case name == "":
		return "is empty"
	case len(name) > maxName:
		return "is longer than the 255 bytes that Elasticsearch takes"
	case name != strings.ToLower(name):
		return "has upper case, which Elasticsearch takes in no index name"
	case strings.ContainsAny(name, "\\/*?\"<>| ,#:\x00\t\r\n"):
		return `has a character that no index name can have: space \ / * ? " < > | , # :`
	case strings.ContainsAny(name[:1], "-_+") || name == "." || name == "..":
		return "begins with - _ or +, or is only dots, which no index name may"
	}
	return ""
}
