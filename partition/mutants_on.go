//go:build mutants

package partition

import "os"

// Planted bugs: the variable SLUICE_MUTANT names the one that is on.
var (
	mutantStale = planted("cache-never-purged")
	mutantBack  = planted("table-goes-back")
	mutantMoves = planted("customer-moves")
	mutantBlind = planted("stale-reader-believes")
)

func planted(name string) bool { return os.Getenv("SLUICE_MUTANT") == name }
