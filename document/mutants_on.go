//go:build mutants

package document

import "os"

// Planted bugs: the variable SLUICE_MUTANT names the one that is on.
var (
	mutantDelete  = planted("delete-without-version")
	mutantShadow  = planted("shadow-delete-is-hard")
	mutantOneSide = planted("dual-write-misses-a-side")
	mutantHeader  = planted("first-header-wins")
	mutantHash    = planted("hashed-id-is-chosen")
)

func planted(name string) bool { return os.Getenv("SLUICE_MUTANT") == name }
