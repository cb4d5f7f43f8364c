//go:build noasm || !amd64

package emu

func fuseKernels() []*fuseKernel { return []*fuseKernel{&goFuse} }
