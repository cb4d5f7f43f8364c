//go:build cuda && cgo && linux

package libcuda

// #include "libcuda.h"
import "C"

import (
	"errors"
	"fmt"
	"unsafe"
)

// Device is a GPU that this process works with: in its primary context, or in
// one that was adopted.
type Device struct {
	GPU
	Version int // the newest CUDA that the driver serves: 1000·major + 10·minor

	ordinal int // of an adopted context -1
	lib     driver
	c       C.octet_device
	owner   any // of an adopted context
}

// Ptr is an address in a device's memory; 0 is none.
type Ptr uint64

// Open takes the GPU that CUDA counts as ordinal.
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

// Adopt works in a context that another part of this process made: a CUcontext,
// which has to outlive everything that is made on the Device. Close leaves it as
// it is. The owner is kept from the garbage collector as long as the Device is:
// the value whose finalizer would destroy the context, or nil.
//
// Streams, events and memory belong to one context. Every call leaves this one
// current on its thread: to another part of the program that has locked the
// thread with another context, that matters.
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
		_ = d.Close() // the first error tells more
		return nil, err
	}
	return d, nil
}

// Close gives the device back. What was made on it has to be closed before.
func (d *Device) Close() error { return d.check(C.octet_close(&d.c)) }

func (d *Device) check(s C.octet_status) error {
	if s.code == 0 {
		return nil
	}
	return driverError(d.lib.Table, s)
}

// Memory asks how many bytes of the device are free, for all processes, and how
// many it has.
func (d *Device) Memory() (free, total uint64, err error) {
	var f, t C.size_t
	err = d.check(C.octet_memory(&d.c, &f, &t))
	return uint64(f), uint64(t), err
}

// Alloc takes memory of the device, aligned to 256 bytes and not initialised.
func (d *Device) Alloc(bytes int) (Ptr, error) {
	var p C.uint64_t
	if err := d.check(C.octet_alloc(&d.c, C.size_t(bytes), &p)); err != nil {
		return 0, fmt.Errorf("%d bytes of device memory: %w", bytes, err)
	}
	return Ptr(p), nil
}

// Free gives memory back, after everything that was under way on the device.
func (d *Device) Free(p Ptr) error { return d.check(C.octet_free(&d.c, C.uint64_t(p))) }

// Pinned is host memory that stays where it is, so that a device can copy from
// and to it while the program goes on.
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

// Close frees the memory. Nothing may be under way with it.
func (p *Pinned) Close() error {
	return p.d.check(C.octet_unpin(&p.d.c, unsafe.Pointer(unsafe.SliceData(p.Bytes))))
}
