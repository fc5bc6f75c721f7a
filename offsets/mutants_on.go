//go:build mutants

package offsets

import "os"

// Planted bugs: the variable SLUICE_MUTANT names the one that is on.
var (
	mutantHighest = planted("commit-highest")
	mutantHole    = planted("hole-stalls")
	mutantGrow    = planted("given-up-is-forgotten")
	mutantFirst   = planted("first-target-settles")
	mutantBack    = planted("taken-back-by-half")
)

func planted(name string) bool { return os.Getenv("SLUICE_MUTANT") == name }
