//go:build mutants

package indexer

import "os"

// Planted bugs: the variable SLUICE_MUTANT names the one that is on.
var (
	mutantItems     = planted("item-errors-ignored")
	mutantThrottled = planted("429-is-success")
	mutantFlush     = planted("failed-batch-dropped")
	mutantCut       = planted("cut-answer-is-success")
	mutantHalf      = planted("half-is-lost")
	mutantSecond    = planted("no-second-try")
	mutantBuffer    = planted("buffer-reused")
	mutantOrder     = planted("order-lost")
	mutantLanes     = planted("lanes-change-at-once")
	mutantGate      = planted("gate-ignored")
	mutantNewer     = planted("later-is-newer")
	mutantHurry     = planted("retry-after-ignored")
	mutantProbe     = planted("refused-probe-frees")
	mutantDropped   = planted("dropped-is-newer")
)

func planted(name string) bool { return os.Getenv("SLUICE_MUTANT") == name }
