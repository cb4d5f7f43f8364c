//go:build !noasm

package emu

import "golang.org/x/sys/cpu"

// The instruction sets of the kernels for vectors. Tests turn them off to
// reach the narrower ones.
var (
	haveAVX512 = cpu.X86.HasAVX512F && cpu.X86.HasAVX512DQ
	haveAVX2   = cpu.X86.HasAVX2 && cpu.X86.HasFMA
)

// wholeVectors is how many of n elements the elementwise kernels take, which
// work on sixteen at a time; their plain Go twins take the rest.
func wholeVectors(n int) int {
	if !haveAVX2 {
		return 0
	}
	return n &^ 15
}
