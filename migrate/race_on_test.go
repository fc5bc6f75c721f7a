//go:build race

package migrate

// stride is how many of the writes a process is killed at: the race detector
// makes each run ten times as long.
const stride = 7

// detourStride is the same of the verbs that lead nowhere.
const detourStride = 3

// How large and how many the migrations of TestChaos are.
const (
	chaosDocuments = 4_000
	chaosSeeds     = 1
)

// verifySeeds is how many histories TestVerifyFindsWhatHasChanged goes through.
const verifySeeds = 2
