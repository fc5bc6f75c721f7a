//go:build !mutants

package deadletter

// Planted bugs: see mutants_on.go.
const mutantVoid = false
