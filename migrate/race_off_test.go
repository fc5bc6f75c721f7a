//go:build !race

package migrate

// stride is how many of the writes a process is killed at: every one.
const stride = 1
