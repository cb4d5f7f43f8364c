//go:build gaudi && cgo && linux

package libsynapse

// #include <stdlib.h>
// #include "libsynapse.h"
import "C"

import (
	"fmt"
	"unsafe"
)

// Telemetry reads what a device says of itself, through Habana's management
// library (HLML), which is a library of its own and asks the driver: it neither
// needs the device to be acquired nor disturbs what it does.
type Telemetry struct {
	lib    hlml
	device C.octet_syn_handle
}

// OpenTelemetry finds the device with this address on PCI: see Device.Bus.
func OpenTelemetry(bus string) (*Telemetry, error) {
	lib, err := loadHLML()
	if err != nil {
		return nil, err
	}
	name := C.CString(bus)
	defer C.free(unsafe.Pointer(name))
	t := &Telemetry{lib: lib}
	if err := hlmlError(C.octet_hlml_open(lib.Table, name, &t.device)); err != nil {
		return nil, fmt.Errorf("the Gaudi at %s: %w", bus, err)
	}
	return t, nil
}

// HLML has no text for its codes, whose names say enough.
func hlmlError(s C.octet_syn_status) error { return failed(s, func(C.int) string { return "" }) }

// Close ends the reading.
func (t *Telemetry) Close() error { return hlmlError(C.octet_hlml_close(t.lib.Table)) }

// The reasons of hlml.h for a clock that is lowered.
const (
	throttledByPower = 1 << iota
	throttledByHeat
)

// Read asks for everything. It may take milliseconds.
func (t *Telemetry) Read() (Reading, error) {
	var c C.octet_syn_reading
	if err := hlmlError(C.octet_hlml_read(t.lib.Table, t.device, &c)); err != nil {
		return Reading{}, err
	}
	r := Reading{
		Utilization: answer(c.utilization, 1e-2),
		MemoryUsed:  answer(c.memory_used, 1), MemoryTotal: answer(c.memory_total, 1),
		Power: answer(c.power, 1e-3), Energy: answer(c.energy, 1e-3),
		Temperature: answer(c.temperature, 1), Clock: answer(c.clock, 1e6),
	}
	if c.throttle.known != 0 {
		r.ThrottledByPower = new(c.throttle.value&throttledByPower != 0)
		r.ThrottledByHeat = new(c.throttle.value&throttledByHeat != 0)
	}
	return r, nil
}

func answer(a C.octet_syn_answer, unit float64) *float64 {
	if a.known == 0 {
		return nil
	}
	return new(float64(a.value) * unit)
}
