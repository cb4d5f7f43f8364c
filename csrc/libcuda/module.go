//go:build cuda && cgo && linux

package libcuda

// #cgo noescape octet_launch
// #cgo nocallback octet_launch
// #include <stdlib.h>
// #include "libcuda.h"
import "C"

import (
	"errors"
	"fmt"
	"unsafe"
)

// Module is compiled code on a device.
type Module struct {
	d *Device
	m C.octet_handle
}

// LoadModule loads a cubin, which must be compiled for the device's architecture.
func (d *Device) LoadModule(cubin []byte) (*Module, error) {
	if len(cubin) == 0 {
		return nil, errors.New("load a module: the cubin is empty")
	}
	m := &Module{d: d}
	return m, d.check(C.octet_module_load(&d.c, unsafe.Pointer(&cubin[0]), &m.m))
}

// Close unloads the module and its functions.
func (m *Module) Close() error { return m.d.check(C.octet_module_free(&m.d.c, m.m)) }

// Function is a kernel with one parameter: a struct of 8-byte words, passed by value.
type Function struct {
	Name string

	d     *Device
	f     C.octet_handle
	bytes int // of the parameter; -1 if the driver does not report it
}

// Function returns an extern "C" kernel and loads it: with lazy loading, drivers would
// otherwise load it at the first launch (CUDA C++ programming guide, lazy loading), which
// fails in a capture.
func (m *Module) Function(name string) (*Function, error) {
	c := C.CString(name)
	defer C.free(unsafe.Pointer(c))
	f := &Function{Name: name, d: m.d}
	var bytes C.int
	if err := m.d.check(C.octet_function(&m.d.c, m.m, c, &f.f, &bytes)); err != nil {
		return nil, fmt.Errorf("kernel %s: %w", name, err)
	}
	if f.bytes = int(bytes); f.bytes == -2 {
		return nil, fmt.Errorf("kernel %s needs exactly one parameter", name)
	}
	return f, nil
}

// AllowShared raises the maximum of dynamic shared memory above the default of 48 KiB, up
// to the GPU's Shared less the kernel's static shared memory.
func (f *Function) AllowShared(bytes int) error {
	if err := f.d.check(C.octet_function_shared(&f.d.c, f.f, C.int(bytes))); err != nil {
		return fmt.Errorf("kernel %s with %d bytes of shared memory: %w", f.Name, bytes, err)
	}
	return nil
}

// Launch enqueues the kernel with a grid of blocks of block threads, and shared bytes of
// dynamic shared memory. The args are copied before it returns.
func (f *Function) Launch(s *Stream, grid [3]int, block, shared int, args []uint64) error {
	if f.bytes >= 0 && f.bytes != 8*len(args) {
		return fmt.Errorf("kernel %s needs a struct of %d bytes, got %d words", f.Name, f.bytes, len(args))
	}
	status := C.octet_launch(&f.d.c, f.f, s.s, C.uint(grid[0]), C.uint(grid[1]), C.uint(grid[2]), C.uint(block), C.uint(shared),
		(*C.uint64_t)(unsafe.Pointer(unsafe.SliceData(args))), C.size_t(8*len(args)))
	if status.code == 0 {
		return nil
	}
	return fmt.Errorf("kernel %s, grid %v, block %d, %d bytes of shared memory: %w", f.Name, grid, block, shared, f.d.check(status))
}
