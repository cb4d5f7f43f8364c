//go:build !noasm

package emu

// wholeVectors is how many of n elements the elementwise kernels take, which
// work on multiples of 16; their plain Go twins take the rest.
func wholeVectors(n int) int { return n &^ 15 }
