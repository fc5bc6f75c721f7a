//go:build mutants

package deadletter

import "os"

// Planted bugs: the variable SLUICE_MUTANT names the one that is on.
var (
	mutantVoid  = planted("void-replayed")
	mutantPart  = planted("part-is-letter")
	mutantPlace = planted("letter-of-another-topic")
)

func planted(name string) bool { return os.Getenv("SLUICE_MUTANT") == name }
