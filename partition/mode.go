package partition

import "fmt"

// Mode says which side of a stream a record is written to. It only goes up,
// but for the way back from dual writing to W0: see CanBecome.
type Mode uint8

// The write modes. Their text in a table is legacy, dual_shadow, dual and new.
const (
	W0 Mode = iota // the legacy index only
	W1             // both; a delete on the new side is a document that keeps its version
	W2             // both
	W3             // the index partitions only
)

var modes = [...]string{W0: "legacy", W1: "dual_shadow", W2: "dual", W3: "new"}

// String returns W0 to W3, the name that people use.
func (m Mode) String() string { return fmt.Sprintf("W%d", uint8(m)) }

// Legacy says whether the legacy index must have each record.
func (m Mode) Legacy() bool { return m <= W2 }

// New says whether the customer's index partition must have each record.
func (m Mode) New() bool { return m >= W1 }

// CanBecome says whether a table in mode m may be followed by one in mode
// next: the same, one up, or back from W1 or W2 to W0. From W3 no mode leads
// back: the legacy index has missed records.
func (m Mode) CanBecome(next Mode) bool {
	return next <= W3 && (next == m || next == m+1 || next == W0 && (m == W1 || m == W2))
}

// ParseMode reads a mode in either spelling: dual_shadow or W1.
func ParseMode(s string) (Mode, error) {
	for m, text := range modes {
		if s == text || s == Mode(m).String() {
			return Mode(m), nil
		}
	}
	return 0, fmt.Errorf("%q is no write mode; use legacy (W0), dual_shadow (W1), dual (W2) or new (W3)", s)
}

// MarshalText returns the mode's text in a table.
func (m Mode) MarshalText() ([]byte, error) {
	if m > W3 {
		return nil, fmt.Errorf("write mode %d does not exist", uint8(m))
	}
	return []byte(modes[m]), nil
}

// UnmarshalText is ParseMode.
func (m *Mode) UnmarshalText(text []byte) (err error) {
	*m, err = ParseMode(string(text))
	return err
}
