package migrate

import (
	"os/exec"
	"strings"
	"testing"
)

// A shell reads what is suggested as the very name that was meant.
func TestWordIsReadByAShell(t *testing.T) {
	for text, want := range map[string]string{
		"acme": "acme", "Ünal:7/a.b": "Ünal:7/a.b", "": "''", "a b": "'a b'", "$(reboot)": "'$(reboot)'", "it's": `'it'\''s'`, "-x": "-x", "~": "'~'",
		"a\nb": `$'a\012b'`, "\x1b[2J'7": `$'\033[2J\'7'`, "a\u202eb\\": `$'a\342\200\256b\\'`, "\xff8": `$'\3778'`,
	} {
		got := word(text)
		if got != want {
			t.Errorf("%q is written %s, want %s", text, got, want)
		}
		if strings.ContainsFunc(got, func(r rune) bool { return r < ' ' || r == '\u202e' }) {
			t.Errorf("%q is written %q", text, got)
		}
		if out, err := exec.CommandContext(t.Context(), "bash", "-c", "printf %s "+got).Output(); err != nil || string(out) != text {
			t.Errorf("bash reads %s as %q, %v", got, out, err)
		}
	}
}

func TestRefusedCustomersAreQuoted(t *testing.T) {
	s := &step{}
	s.refuseDirty(&Job{Name: "j7"}, []string{"$(reboot)", "b\x1b[2J"})
	if r := s.refusals[0]; r.Remedy != "sluice migrate verify --repair --customer '$(reboot)' --job j7" || r.Why != `one side has refused records of '$(reboot)', $'b\033[2J'` {
		t.Errorf("%+v", r)
	}
	status := Status{Job: &Job{Name: "j7", State: Synced}, Dirty: 1, DirtyCustomers: []string{"a b"}}
	if got := status.command(); got != "sluice migrate verify --repair --customer 'a b' --job j7" {
		t.Error(got)
	}
}
