//go:build gaudi && cgo && linux

package libsynapse

// #include "libsynapse.h"
import "C"

// Synapse describes SynapseAI and the machine's devices.
type Synapse struct {
	Path    string // the loaded file; "" if there is none
	Version string // of the driver and runtime
	Devices int    // of any kind
	Gaudi2  int
	Gaudi3  int
}

// Probe loads and initializes SynapseAI and counts the devices, without acquiring one.
// The error is the loader's or SynapseAI's.
func Probe() (Synapse, error) {
	l, err := loadSynapse()
	if err != nil {
		return Synapse{}, err
	}
	s := Synapse{Path: l.Path}
	if err := initialize(l); err != nil {
		return s, err
	}
	if s.Version, err = version(l); err != nil {
		return s, err
	}
	var devices, gaudi2, gaudi3 C.uint32_t
	err = synapseError(l, C.octet_syn_count(l.Table, &devices, &gaudi2, &gaudi3))
	s.Devices, s.Gaudi2, s.Gaudi3 = int(devices), int(gaudi2), int(gaudi3)
	return s, err
}
