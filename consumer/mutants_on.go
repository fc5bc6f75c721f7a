//go:build mutants

package consumer

import "os"

// Planted bugs: the variable SLUICE_MUTANT names the one that is on.
var (
	mutantLate   = planted("late-outcome-commits")
	mutantLetter = planted("letter-not-awaited")
	mutantPause  = planted("pause-kept")
	mutantStop   = planted("stop-skips-last-batch")
	mutantEarly  = planted("commit-before-flush")

	mutantUnstated = planted("read-before-state")
	mutantNull     = planted("null-becomes-empty")
	mutantRush     = planted("adopt-without-draining")
	mutantStale    = planted("start-below-committed-epoch")
	mutantUnmarked = planted("dirty-mark-not-awaited")
	mutantBorder   = planted("next-generation-is-late")
	mutantGivenUp  = planted("letter-given-up-counts")
	mutantDrained  = planted("lane-closes-early")
)

func planted(name string) bool { return os.Getenv("SLUICE_MUTANT") == name }
