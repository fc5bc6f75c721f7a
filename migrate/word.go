package migrate

import (
	"fmt"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// word is a text as a shell reads it as one word, and as a terminal shows and does
// not obey it: names of customers are whatever somebody sent. Texts of letters,
// digits and what stands in names are left as they are.
func word(text string) string {
	special := func(r rune) bool {
		return !unicode.IsLetter(r) && !unicode.IsDigit(r) && !strings.ContainsRune("_@%+=:,./-", r)
	}
	if text != "" && utf8.ValidString(text) && !strings.ContainsFunc(text, special) {
		return text
	}
	if utf8.ValidString(text) && !strings.ContainsFunc(text, func(r rune) bool { return !strconv.IsPrint(r) }) {
		return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'"
	}
	// Of bash, zsh and POSIX since 2024.
	var b strings.Builder
	b.WriteString("$'")
	for i := 0; i < len(text); {
		r, n := utf8.DecodeRuneInString(text[i:])
		switch {
		case r == '\'' || r == '\\':
			b.WriteString(`\` + string(r))
		case r != utf8.RuneError && strconv.IsPrint(r):
			b.WriteRune(r)
		default:
			for _, c := range []byte(text[i : i+n]) {
				fmt.Fprintf(&b, `\%03o`, c) // three digits end it, whatever follows
			}
		}
		i += n
	}
	return b.String() + "'"
}
