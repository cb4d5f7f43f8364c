//go:build gaudi && cgo && linux

package libsynapse

// #include "libsynapse.h"
import "C"

import (
	"errors"
	"fmt"
	"unsafe"
)

// Device is a Gaudi that this process has acquired exclusively. SynapseAI gives a process
// only one.
type Device struct {
	Name   string // the device's own name
	Bus    string // PCI address, which other tools use as well
	Driver string // version of the driver and runtime
	Type   DeviceType
	Align  int // alignment of addresses in its memory, bytes

	lib synapse
	id  C.uint32_t
}

// Open acquires the device with this module number, its position in the machine, or with
// -1 the first free one.
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
	hint := "another process holds it, or it does not exist: hl-smi lists the devices and the processes that hold them"
	var e *Error
	if errors.As(err, &e) && e.Name() == "synDeviceAlreadyAcquired" {
		hint = "this process already has one, and SynapseAI gives a process only one"
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

// Model returns "gaudi2" or "gaudi3".
func (d *Device) Model() string { return d.Type.String() }

// Close releases the device. Everything made on it must be closed first, communicators
// before all else. A process that will compute again keeps its device: devices that are
// released and quickly acquired again have been seen to fail. After an error for which
// DeviceLost is true, do not call Close, because the teardown may hang; end the process.
func (d *Device) Close() error { return d.check(C.octet_syn_release(d.lib.Table, d.id)) }

func (d *Device) check(s C.octet_syn_status) error { return synapseError(d.lib, s) }

// Memory returns the device's free and total memory in bytes.
func (d *Device) Memory() (free, total uint64, err error) {
	var f, t C.uint64_t
	err = d.check(C.octet_syn_memory(d.lib.Table, d.id, &f, &t))
	return uint64(f), uint64(t), err
}

// Alloc allocates device memory, aligned to Align and not initialized.
func (d *Device) Alloc(bytes int) (Ptr, error) {
	var p C.uint64_t
	if err := d.check(C.octet_syn_alloc(d.lib.Table, d.id, C.uint64_t(bytes), &p)); err != nil {
		return 0, fmt.Errorf("%d bytes of device memory: %w", bytes, err)
	}
	return Ptr(p), nil
}

// Free frees device memory. No pending work may use it.
func (d *Device) Free(p Ptr) error {
	return d.check(C.octet_syn_free(d.lib.Table, d.id, C.uint64_t(p)))
}

// Host is host memory mapped for the device, as copies require.
type Host struct {
	d     *Device
	bytes []byte
}

// Host allocates zeroed host memory and maps it for the device.
func (d *Device) Host(bytes int) (*Host, error) {
	var p unsafe.Pointer
	if err := d.check(C.octet_syn_host_alloc(d.lib.Table, d.id, C.uint64_t(bytes), &p)); err != nil {
		return nil, fmt.Errorf("%d bytes of host memory mapped for the device: %w", bytes, err)
	}
	h := &Host{d, unsafe.Slice((*byte)(p), bytes)}
	clear(h.bytes)
	return h, nil
}

// Bytes returns the memory, which is valid until Close.
func (h *Host) Bytes() []byte { return h.bytes }

// Close frees the memory. No pending work may use it.
func (h *Host) Close() error {
	return h.d.check(C.octet_syn_host_free(h.d.lib.Table, h.d.id, unsafe.Pointer(unsafe.SliceData(h.bytes))))
}

func (h *Host) at(offset, bytes int) (unsafe.Pointer, error) {
	if offset < 0 || bytes < 0 || offset > len(h.bytes)-bytes {
		return nil, fmt.Errorf("%d bytes at offset %d exceed the %d bytes of host memory", bytes, offset, len(h.bytes))
	}
	return unsafe.Pointer(unsafe.SliceData(h.bytes[offset:])), nil
}
