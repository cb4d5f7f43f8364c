//go:build noasm || !amd64 || !linux

package gemm

import "errors"

// amxKernels returns the kernels that this process can run, the fastest first.
func amxKernels() []*amxKernel { return []*amxKernel{&amxGoKernel} }

// AMXProcessor is AMXAvailable: without assembly the processor does not matter.
func AMXProcessor() error { return AMXAvailable() }

// AMXAvailable returns why this process cannot use the matrix unit.
func AMXAvailable() error {
	return errors.New("this build has no assembly for AMX (it needs linux on amd64, without -tags noasm)")
}

// amxIntegerKernel returns the fastest kernel for integers.
func amxIntegerKernel() *Kernel { return Kernels()[0] }
