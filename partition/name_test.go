package partition

import (
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// FuzzNames: two customers never share the name of an index.
func FuzzNames(f *testing.F) {
	f.Add("acme", "Acme")
	f.Add("é", "e\u0301")
	f.Add("a=41", "aA")
	f.Add(strings.Repeat("X", 256), strings.Repeat("X", 255))
	f.Fuzz(func(t *testing.T, a, b string) { checkNames(t, a, b) })
}

func TestNames(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		customers := rapid.OneOf(rapid.StringMatching(`[aA=4s1-]{0,5}`), rapid.String(), rapid.StringN(200, 256, -1))
		checkNames(t, customers.Draw(t, "a"), customers.Draw(t, "b"))
	})
}

func checkNames(t interface{ Fatalf(string, ...any) }, a, b string) {
	x, y := Name("events-w-", a, "-j7"), Name("events-w-", b, "-j7")
	if (x == y) != (a == b) {
		t.Fatalf("%q and %q are %s and %s", a, b, x, y)
	}
	for _, name := range []string{x, y} {
		if problem := CheckIndex(name); problem != "" {
			t.Fatalf("%s %s", name, problem)
		}
	}
}
