//go:build !noasm

package gemm

import "golang.org/x/sys/cpu"

func init() {
	testedIntegers[&AVX2] = []*IntegerKernel{&avx2Integers}
	if cpu.X86.HasAVXVNNI {
		testedIntegers[&AVX2] = append(testedIntegers[&AVX2], &avxVNNI)
	}
	if cpu.X86.HasAVX512VNNI {
		testedIntegers[&AVX512] = []*IntegerKernel{&avx512VNNI}
	}
}
