//go:build !noasm

package gemm

import "golang.org/x/sys/cpu"

func init() {
	if cpu.ARM64.HasASIMDDP {
		testedIntegers[&NEON] = []*IntegerKernel{&neonDots}
	}
}
