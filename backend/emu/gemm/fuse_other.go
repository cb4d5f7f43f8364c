//go:build noasm || !amd64

package gemm

func fuseKernels() []*fuseKernel { return []*fuseKernel{&goFuse} }
