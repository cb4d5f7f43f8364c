//go:build gaudi && cgo && linux

package libsynapse

// #include "libsynapse.h"
import "C"

import (
	"errors"
	"fmt"
	"unsafe"
)

// Device is a Gaudi that this process has acquired, and nobody else can use
// meanwhile. SynapseAI gives a process one.
type Device struct {
	Name   string // what it calls itself
	Bus    string // its address on PCI, by which other tools know it
	Driver string // version of the driver and runtime
	Type   DeviceType
	Align  int // what addresses in its memory have to be multiples of

	lib synapse
	id  C.uint32_t
}

// Open acquires the device with this module number, which is its place in the
// machine, or with -1 the first that is free.
func Open(module int) (*Device, error) {
	lib, err := startSynapse()
	if err != nil {
		return nil, err
	}
	d := &Device{lib: lib}
	if err := d.check(C.octet_syn_acquire(lib.Table, C.int(module), &d.id)); err != nil {
		return nil, acquireError(module, err)
	}
	if err := d.describe(); err != nil {
		_ = d.Close() // the first error tells more
		return nil, err
	}
	return d, nil
}

func acquireError(module int, err error) error {
	what := fmt.Sprintf("acquire the Gaudi with module number %d", module)
	if module < 0 {
		what = "acquire a free Gaudi"
	}
	hint := "another process holds it, or it is not there: hl-smi lists the devices and who holds them"
	var e *Error
	if errors.As(err, &e) && e.Name() == "synDeviceAlreadyAcquired" {
		hint = "this process has one already, and SynapseAI gives a process no second"
	}
	return fmt.Errorf("%s: %w; %s", what, err, hint)
}

func (d *Device) describe() (err error) {
	if d.Driver, err = version(d.lib); err != nil {
		return err
	}
	var c C.octet_syn_description
	if err := d.check(C.octet_syn_describe(d.lib.Table, d.id, &c)); err != nil {
		return err
	}
	d.Name, d.Bus = C.GoString(&c.name[0]), C.GoString(&c.bus[0])
	d.Type, d.Align = DeviceType(c._type), int(c.align)
	if d.Type != Gaudi2 && d.Type != Gaudi3 {
		return fmt.Errorf("the device is a %s, of type %d: only Gaudi 2 and 3 compute in FP8", d.Name, d.Type)
	}
	return nil
}

// Model is "gaudi2" or "gaudi3".
func (d *Device) Model() string { return d.Type.String() }

// Close gives the device back. What was made on it has to be closed before,
// communicators first. A process that goes on to compute keeps its device:
// devices that are given back and acquired again in haste have been seen to
// fail. After an error that DeviceLost is true of, leave it to the end of the
// process: the teardown may hang.
func (d *Device) Close() error { return d.check(C.octet_syn_release(d.lib.Table, d.id)) }

func (d *Device) check(s C.octet_syn_status) error { return synapseError(d.lib, s) }

// Memory asks how many bytes of the device are free, and how many it has.
func (d *Device) Memory() (free, total uint64, err error) {
	var f, t C.uint64_t
	err = d.check(C.octet_syn_memory(d.lib.Table, d.id, &f, &t))
	return uint64(f), uint64(t), err
}

// Alloc takes memory of the device, aligned to Align and not initialised.
func (d *Device) Alloc(bytes int) (Ptr, error) {
	var p C.uint64_t
	if err := d.check(C.octet_syn_alloc(d.lib.Table, d.id, C.uint64_t(bytes), &p)); err != nil {
		return 0, fmt.Errorf("%d bytes of device memory: %w", bytes, err)
	}
	return Ptr(p), nil
}

// Free gives memory back. Nothing may be under way with it.
func (d *Device) Free(p Ptr) error {
	return d.check(C.octet_syn_free(d.lib.Table, d.id, C.uint64_t(p)))
}

// Host is host memory that the device can reach: what it copies from and to has
// to be.
type Host struct {
	d     *Device
	bytes []byte
}

// Host allocates host memory and maps it for the device, zeroed.
func (d *Device) Host(bytes int) (*Host, error) {
	var p unsafe.Pointer
	if err := d.check(C.octet_syn_host_alloc(d.lib.Table, d.id, C.uint64_t(bytes), &p)); err != nil {
		return nil, fmt.Errorf("%d bytes of host memory mapped for the device: %w", bytes, err)
	}
	h := &Host{d, unsafe.Slice((*byte)(p), bytes)}
	clear(h.bytes)
	return h, nil
}

// Bytes is the memory, until Close.
func (h *Host) Bytes() []byte { return h.bytes }

// Close frees the memory. Nothing may be under way with it.
func (h *Host) Close() error {
	return h.d.check(C.octet_syn_host_free(h.d.lib.Table, h.d.id, unsafe.Pointer(unsafe.SliceData(h.bytes))))
}

func (h *Host) at(offset, bytes int) (unsafe.Pointer, error) {
	if offset < 0 || bytes < 0 || offset > len(h.bytes)-bytes {
		return nil, fmt.Errorf("%d bytes from %d on of %d bytes of host memory", bytes, offset, len(h.bytes))
	}
	return unsafe.Pointer(unsafe.SliceData(h.bytes[offset:])), nil
}
