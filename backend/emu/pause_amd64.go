//go:build !noasm

package emu

// pause spends n PAUSE instructions, of 3 to 45 ns: the other thread of a
// core gets its units meanwhile, and leaving a polling loop costs no flushed
// pipeline (Intel's optimization manual, on spin-wait loops).
func pause(n int)
