package partition

import "strings"

// maxName is the longest index name that the server takes, in bytes.
const maxName = 255

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
