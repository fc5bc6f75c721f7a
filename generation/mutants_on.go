//go:build mutants

package generation

import "os"

// Planted bugs: the variable SLUICE_MUTANT names the one that is on.
var (
	mutantStart  = planted("generation-starts-late")
	mutantRewind = planted("raise-without-reset")
)

func planted(name string) bool { return os.Getenv("SLUICE_MUTANT") == name }
