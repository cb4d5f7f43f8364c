// Package gaudi is the door to Intel Gaudi 2 and 3. What stands behind it
// today is knowledge and a probe, no computation:
//
//   - Spec tells planners and recipes what the FP8 matrix engines of the two
//     models multiply, on any machine. They differ: see models.
//   - Probe, in a build with -tags gaudi and cgo on Linux, finds SynapseAI and
//     the devices, and says what is missing and how to get it; octet doctor
//     prints it. SynapseAI is loaded when the probe asks for it (package
//     octet/csrc/libsynapse), so a build needs no SDK.
//   - Lower and Open refuse, with backend.ErrUnsupported and
//     backend.ErrNoDevice, and Available says so: this version does not train
//     on Gaudi, with or without the tag.
package gaudi

import (
	"fmt"
	"strconv"

	"octet/backend"
	"octet/fp8"
)

func init() {
	backend.Register(backend.Driver{
		Name:      "gaudi",
		Rank:      10,
		Available: available,
		Spec:      spec,
		Lower:     lower,
		Units:     units,
		Open:      open,
		Probe:     probe,
	})
}

func available() error {
	return fmt.Errorf("this version finds Gaudi devices (built with -tags gaudi) but does not train on them, so there is %w to run on; use --backend emu", backend.ErrNoDevice)
}

// models is what is published of the two, in SynapseAI's open compiler,
// runtime and PyTorch bridge. Gaudi 2 reserves the top exponent of E4M3 for
// infinity and NaN, which leaves 240 as its largest value, and refuses a
// product of unequal formats. Align is the alignment of device addresses.
// Neither draws Octet's random bits: the casts have a generator of their own.
var models = map[string]backend.Spec{
	"gaudi2": {
		Backend: "gaudi", Device: "Gaudi 2", E4M3: fp8.E4M3IEEE, Align: 128, AttentionBF16: true,
		Pairs: [][2]fp8.DType{{fp8.E4M3IEEE, fp8.E4M3IEEE}, {fp8.E5M2, fp8.E5M2}},
	},
	"gaudi3": {
		Backend: "gaudi", Device: "Gaudi 3", E4M3: fp8.E4M3, Align: 256, AttentionBF16: true,
		Pairs: [][2]fp8.DType{
			{fp8.E4M3, fp8.E4M3}, {fp8.E4M3, fp8.E5M2}, {fp8.E5M2, fp8.E4M3}, {fp8.E5M2, fp8.E5M2},
		},
	},
}

// spec takes a model, or the number of a device, whose model is taken to be
// Gaudi 2: nothing here asks the hardware.
func spec(device string) (backend.Spec, error) {
	if _, err := strconv.ParseUint(device, 10, 16); err == nil || device == "" {
		device = "gaudi2"
	}
	s, ok := models[device]
	if !ok {
		return s, fmt.Errorf("unknown device %q of backend gaudi (known: gaudi2, gaudi3, or the number of a Gaudi 2, such as gaudi:0)", device)
	}
	return s, nil
}

func open(device string, _ backend.Options) ([]backend.Backend, error) {
	if _, err := spec(device); err != nil {
		return nil, err
	}
	return nil, fmt.Errorf("backend gaudi: %w", available())
}
