//go:build gaudi && cgo && linux

package libsynapse

// #include "libsynapse.h"
import "C"

// Synapse is what SynapseAI says of itself and of the machine.
type Synapse struct {
	Path    string // of the file that was loaded; empty if there is none
	Version string // of the driver and runtime
	Devices int    // of any kind
	Gaudi2  int
	Gaudi3  int
}

// Probe loads SynapseAI, starts it and asks; it acquires no device. The error
// is what the loader or SynapseAI said.
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
