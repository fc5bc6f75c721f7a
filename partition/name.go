package partition

import (
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"
)

// maxName is the longest index name that the server takes, in bytes.
const maxName = 255

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
