package deadletter

import (
	"regexp"
	"strings"
	"unicode"
	"unicode/utf8"
)

const (
	maxReason = 256 // bytes of a shortened reason
	maxName   = 64  // bytes of a name in brackets that is kept
	cut       = "…"
)

// position is where a JSON parser stood, line and column.
var position = regexp.MustCompile(`^\[\d{1,9}:\d{1,9}\] `)

// names are the words after which servers put in brackets a name, a type or a
// limit of the mapping, and never a value.
var names = []string{
	"failed to parse field ", "tried to parse field ", "of type ", "mapping for ", "mapper ", "from type ", "] to ",
	"introduction of ", "within ", "total fields ", "index ", "alias ", "blocked by: ", "pipeline with id ",
}

// Shorten makes a server's reason fit to be shown: without the values of
// fields, on one line, at most 256 bytes.
//
// Servers quote what they could not parse, in every way there is:
//
//	failed to parse field [age] of type [long] in document with id '7'. Preview of field's value: 'secret'
//	failed to parse date field [secret] with format [strict_date_optional_time]
//	Numeric value (123456789012) out of range of long
//
// A value may hold quotes and brackets itself, and may be cut by the server,
// so a closing one proves nothing: the reason ends at the first that opens.
// Only what stands in brackets after words that announce a name of the mapping
// is kept, since that says which field to repair.
func Shorten(reason string) string {
	reason = strings.ToValidUTF8(reason, "?")
	var b strings.Builder
	rest := reason
	if at := position.FindString(rest); at != "" {
		b.WriteString(at)
		rest = rest[len(at):]
	}
	for b.Len() <= maxReason {
		open := strings.IndexAny(rest, "\"'`[({<")
		if open < 0 {
			b.WriteString(rest)
			break
		}
		b.WriteString(rest[:open])
		switch {
		case rest[open] == '\'' && strings.HasPrefix(rest[open:], "'s ") && open > 0 && rest[open-1] != ' ': // field's
			b.WriteByte('\'')
			rest = rest[open+1:]
			continue
		case rest[open] == '[' && announced(b.String()):
			if end := strings.IndexByte(rest[open:], ']'); end >= 0 && end <= maxName {
				b.WriteString(rest[open : open+end+1])
				rest = rest[open+end+1:]
				continue
			}
		}
		b.WriteByte(rest[open])
		b.WriteString(cut)
		break
	}
	return oneLine(b.String())
}

func announced(before string) bool {
	for _, name := range names {
		if strings.HasSuffix(before, name) {
			return true
		}
	}
	return false
}

func oneLine(s string) string {
	s = strings.Join(strings.FieldsFunc(s, func(r rune) bool { return unicode.IsSpace(r) || unicode.IsControl(r) }), " ")
	if len(s) <= maxReason {
		return s
	}
	end := maxReason - len(cut)
	for !utf8.RuneStart(s[end]) {
		end--
	}
	return s[:end] + cut
}
