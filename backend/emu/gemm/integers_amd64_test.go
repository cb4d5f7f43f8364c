//go:build !noasm

package gemm

import "golang.org/x/sys/cpu"

func init() {
	if cpu.X86.HasAVX2 {
		testedIntegers[&AVX2] = []*IntegerKernel{&avx2Integers}
	}
}
