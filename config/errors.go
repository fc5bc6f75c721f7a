package config

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// ExitCode is what a process that was given a bad configuration exits with:
// EX_CONFIG of sysexits.h.
const ExitCode = 78

// Position is a place in the configuration.
type Position struct {
	Name         string // a file, or the flag `--set KEY`
	Line, Column int    // from 1; 0: not known, as within a flag

	order int // of the source: files and flags as they were given
}

// String returns name:line:column, without what is not known.
func (p Position) String() string {
	switch {
	case p.Line == 0:
		return p.Name
	case p.Column == 0:
		return fmt.Sprintf("%s:%d", p.Name, p.Line)
	default:
		return fmt.Sprintf("%s:%d:%d", p.Name, p.Line, p.Column)
	}
}

// Error is one thing that is wrong with a configuration. It never holds the
// value of a secret or of a variable.
type Error struct {
	Position Position // of the key, or of the nearest section that is written down
	Key      string   // in full, such as kafka.topics[1]; "": a whole file
	Problem  string
	Remedy   string // "": Problem says it
}

// Error returns position, key, problem and remedy in one line.
func (e *Error) Error() string {
	text := e.Position.String() + ": "
	if e.Key != "" && e.Position.Name != "--set "+e.Key {
		text += e.Key + ": "
	}
	text += e.Problem
	if e.Remedy != "" {
		text += "; " + e.Remedy
	}
	return text
}

// Errors is everything that is wrong with a configuration, in the order of the
// positions. It is never empty where it is returned.
type Errors []*Error

// Error returns one line per error.
func (e Errors) Error() string {
	lines := make([]string, len(e))
	for i, err := range e {
		lines[i] = err.Error()
	}
	return strings.Join(lines, "\n")
}

// Unwrap returns the single errors.
func (e Errors) Unwrap() []error {
	errs := make([]error, len(e))
	for i, err := range e {
		errs[i] = err
	}
	return errs
}

// ExitCode returns the code that the process exits with, 78.
func (Errors) ExitCode() int { return ExitCode }

// asError returns e in order, or nil when there is nothing in it.
func (e Errors) asError() error {
	if len(e) == 0 {
		return nil
	}
	slices.SortStableFunc(e, func(a, b *Error) int {
		return cmp.Or(
			cmp.Compare(a.Position.order, b.Position.order),
			cmp.Compare(a.Position.Line, b.Position.Line),
			cmp.Compare(a.Position.Column, b.Position.Column),
		)
	})
	return e
}
