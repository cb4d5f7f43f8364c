//go:build !noasm

package simd

import "testing"

// eachInstructionSet runs f with the widest kernels that the processor supports, then
// with the narrower ones, then with the twins.
func eachInstructionSet(t *testing.T, f func(t *testing.T)) {
	wide, narrow := haveAVX512, haveVectors
	defer func() { haveAVX512, haveVectors = wide, narrow }()
	if wide {
		t.Run("avx512", f)
	}
	haveAVX512 = false
	if narrow {
		t.Run("avx2", f)
	}
	haveVectors = false
	t.Run("go", f)
}
