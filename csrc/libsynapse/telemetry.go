//go:build gaudi && cgo && linux

package libsynapse

// #include <stdlib.h>
// #include "libsynapse.h"
import "C"

import (
	"fmt"
	"unsafe"
)

// Telemetry reads a device's sensors through Habana's management library (HLML). HLML
// asks the driver, so it neither needs the device to be acquired nor disturbs its work.
type Telemetry struct {
	lib    hlml
	device C.octet_syn_handle
}

// OpenTelemetry opens the device with this PCI address: see Device.Bus.
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

// HLML has no texts for its codes.
func hlmlError(s C.octet_syn_status) error { return statusError(s, func(C.int) string { return "" }) }

// Close shuts HLML down.
func (t *Telemetry) Close() error { return hlmlError(C.octet_hlml_close(t.lib.Table)) }

// Bits of hlml.h for why the clock is lowered.
const (
	throttledByPower = 1 << iota
	throttledByHeat
)

// Read returns all sensor values. It may take milliseconds.
func (t *Telemetry) Read() (Reading, error) {
	var c C.octet_syn_reading
	if err := hlmlError(C.octet_hlml_read(t.lib.Table, t.device, &c)); err != nil {
		return Reading{}, err
	}
	r := Reading{
		Utilization: optional(c.utilization, 1e-2),
		MemoryUsed:  optional(c.memory_used, 1), MemoryTotal: optional(c.memory_total, 1),
		Power: optional(c.power, 1e-3), Energy: optional(c.energy, 1e-3),
		Temperature: optional(c.temperature, 1), Clock: optional(c.clock, 1e6),
	}
	if c.throttle.known != 0 {
		r.ThrottledByPower = new(c.throttle.value&throttledByPower != 0)
		r.ThrottledByHeat = new(c.throttle.value&throttledByHeat != 0)
	}
	return r, nil
}

func optional(a C.octet_syn_answer, unit float64) *float64 {
	if a.known == 0 {
		return nil
	}
	return new(float64(a.value) * unit)
}
