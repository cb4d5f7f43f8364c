//go:build noasm || !amd64 || !linux

package emu

import "errors"

// amxKernels returns the kernels that this process can run, the fastest first.
func amxKernels() []*amxKernel { return []*amxKernel{&amxGoKernel} }

// amxProcessor returns why this processor cannot use the matrix unit.
func amxProcessor() error { return amxAvailable() }

// amxAvailable returns why this process cannot use the matrix unit.
func amxAvailable() error {
	return errors.New("this build has no assembly for AMX (it needs linux on amd64, without -tags noasm)")
}
