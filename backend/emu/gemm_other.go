//go:build (!amd64 && !arm64) || noasm

package emu

// gemmKernels lists the kernels that this machine can run, the best first.
func gemmKernels() []*gemmKernel { return []*gemmKernel{&goKernel} }
