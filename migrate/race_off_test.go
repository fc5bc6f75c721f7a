//go:build !race

package migrate

// stride is how many of the writes a process is killed at: every one.
const stride = 1

// detourStride is the same of the verbs that lead nowhere.
const detourStride = 1

// How large and how many the migrations of TestChaos are.
const (
	chaosDocuments = 20_000
	chaosSeeds     = 2
)

// verifySeeds is how many histories TestVerifyFindsWhatHasChanged goes through.
const verifySeeds = 6
