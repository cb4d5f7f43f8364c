//go:build noasm || !amd64 || !linux

package emu

import "errors"

// amxKernels lists the kernels that this process can run, the best first.
func amxKernels() []*amxKernel { return []*amxKernel{&amxGoKernel} }

// amxProcessor says why this processor cannot use the matrix unit.
func amxProcessor() error { return amxAvailable() }

// amxAvailable says why this process cannot.
func amxAvailable() error {
	return errors.New("this build has no assembly for AMX (it needs linux on amd64, without -tags noasm)")
}
