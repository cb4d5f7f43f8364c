//go:build (!amd64 && !arm64) || noasm

package gemm

// Kernels lists the kernels that this machine can run, the best first.
func Kernels() []*Kernel { return []*Kernel{&Go} }
