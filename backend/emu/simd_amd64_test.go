//go:build !noasm

package emu

import "testing"

// eachInstructionSet runs f with the widest kernels that the processor has,
// then with the narrower ones.
func eachInstructionSet(t *testing.T, f func(t *testing.T)) {
	wide, narrow := haveAVX512, haveAVX2
	defer func() { haveAVX512, haveAVX2 = wide, narrow }()
	if wide {
		t.Run("avx512", f)
	}
	haveAVX512 = false
	if narrow {
		t.Run("avx2", f)
	}
	haveAVX2 = false
	t.Run("go", f)
}
