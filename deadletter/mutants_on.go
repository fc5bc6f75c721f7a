//go:build mutants

package deadletter

import "os"

// Planted bugs: the variable SLUICE_MUTANT names the one that is on.
var mutantVoid = os.Getenv("SLUICE_MUTANT") == "void-replayed"
