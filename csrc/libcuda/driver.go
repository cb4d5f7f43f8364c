//go:build cuda && cgo && linux

package libcuda

// #include "libcuda.h"
import "C"

import (
	"errors"
	"fmt"
	"unsafe"
)

// Device is a GPU, used in its primary context or in an adopted one.
type Device struct {
	GPU
	Version int // the newest CUDA that the driver supports: 1000·major + 10·minor

	ordinal int // -1 for an adopted context
	lib     driver
	c       C.octet_device
	owner   any // keeps an adopted context reachable
}

// Ptr is an address in a device's memory; 0 is nil.
type Ptr uint64

// Open opens the GPU with CUDA's ordinal.
func Open(ordinal int) (*Device, error) {
	lib, err := openDriver()
	if err != nil {
		return nil, err
	}
	var c C.octet_device
	if err := driverError(lib.Table, C.octet_open(lib.Table, C.int(ordinal), &c)); err != nil {
		return nil, err
	}
	return newDevice(lib, c, ordinal)
}

// Adopt returns a Device in an existing CUcontext of this process. The context must
// outlive everything that is created on the Device, whose Close leaves it intact. Owner,
// which may be nil, is a value whose finalizer would destroy the context: the Device
// keeps it reachable.
//
// Streams, events and memory belong to one context. Every call makes this context current
// on its thread, which affects other code that has locked the thread with another
// context.
func Adopt(context uintptr, owner any) (*Device, error) {
	if context == 0 {
		return nil, errors.New("adopt a CUDA context: it is null")
	}
	lib, err := openDriver()
	if err != nil {
		return nil, err
	}
	var c C.octet_device
	if err := driverError(lib.Table, C.octet_adopt(lib.Table, C.octet_handle(context), &c)); err != nil {
		return nil, fmt.Errorf("adopt a CUDA context: %w", err)
	}
	d, err := newDevice(lib, c, -1)
	if err == nil {
		d.owner = owner
	}
	return d, err
}

func newDevice(lib driver, c C.octet_device, ordinal int) (d *Device, err error) {
	d = &Device{Version: int(C.octet_version(lib.Table)), ordinal: ordinal, lib: lib, c: c}
	if d.GPU, err = describe(lib, d.c.id); err != nil {
		_ = d.Close() // the first error is the cause
		return nil, err
	}
	return d, nil
}

// Close releases the device. Everything created on it must be closed before.
func (d *Device) Close() error { return d.check(C.octet_close(&d.c)) }

func (d *Device) check(s C.octet_status) error {
	if s.code == 0 {
		return nil
	}
	return driverError(d.lib.Table, s)
}

// Memory returns how many bytes of the device are free, shared by all processes, and how
// many it has.
func (d *Device) Memory() (free, total uint64, err error) {
	var f, t C.size_t
	err = d.check(C.octet_memory(&d.c, &f, &t))
	return uint64(f), uint64(t), err
}

// Alloc allocates device memory, aligned to 256 bytes and uninitialized.
func (d *Device) Alloc(bytes int) (Ptr, error) {
	var p C.uint64_t
	if err := d.check(C.octet_alloc(&d.c, C.size_t(bytes), &p)); err != nil {
		return 0, fmt.Errorf("%d bytes of device memory: %w", bytes, err)
	}
	return Ptr(p), nil
}

// Free frees memory, after all pending work of the device.
func (d *Device) Free(p Ptr) error { return d.check(C.octet_free(&d.c, C.uint64_t(p))) }

// Pinned is page-locked host memory, which a device can copy from and to asynchronously.
type Pinned struct {
	Bytes []byte // not to be used after Close

	d *Device
}

// Pin allocates page-locked host memory, zeroed.
func (d *Device) Pin(bytes int) (*Pinned, error) {
	var p unsafe.Pointer
	if err := d.check(C.octet_pin(&d.c, C.size_t(bytes), &p)); err != nil {
		return nil, fmt.Errorf("%d bytes of page-locked host memory: %w", bytes, err)
	}
	memory := unsafe.Slice((*byte)(p), bytes)
	clear(memory)
	return &Pinned{Bytes: memory, d: d}, nil
}

// Close frees the memory. No copy may be pending.
func (p *Pinned) Close() error {
	return p.d.check(C.octet_unpin(&p.d.c, unsafe.Pointer(unsafe.SliceData(p.Bytes))))
}
