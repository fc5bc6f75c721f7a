//go:build race

package migrate

// stride is how many of the writes a process is killed at: the race detector
// makes each run ten times as long.
const stride = 7
