//go:build mutants

package migrate

import "os"

// Planted bugs: the variable SLUICE_MUTANT names the one that is on.
var (
	mutantOverwrite      = planted("copy-overwrites")
	mutantCreate         = planted("copy-creates")
	mutantUnfenced       = planted("copy-before-fence")
	mutantInvisible      = planted("copy-without-refresh")
	mutantInferred       = planted("copy-end-inferred")
	mutantOldLease       = planted("lease-alias-stays")
	mutantOpenDrain      = planted("drain-keeps-aliases")
	mutantNoPulse        = planted("drain-without-pulse")
	mutantEarlyPurge     = planted("purge-before-flip")
	mutantUnfencedPurge  = planted("purge-before-fence")
	mutantPurgeBumps     = planted("purge-by-seq-no")
	mutantUnfencedCancel = planted("cancel-before-fence")
	mutantReaders        = planted("complete-before-readers")
)

func planted(name string) bool { return os.Getenv("SLUICE_MUTANT") == name }
