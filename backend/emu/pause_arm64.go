//go:build !noasm

package emu

// pause spends n ISB instructions, of some ten nanoseconds: they empty the
// pipeline, whereas YIELD does nothing on a core with one thread. (Go's
// runtime spins with it too.)
func pause(n int)
