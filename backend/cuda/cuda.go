// Package cuda is the door to NVIDIA GPUs. What stands behind it today is
// knowledge and a probe, no computation:
//
//   - Spec tells planners and recipes what the FP8 matrix units of Ada and
//     Hopper multiply, on any machine.
//   - Probe, in a build with -tags cuda and cgo on Linux, finds the driver, the
//     GPUs and the libraries that training will load, and says what is missing
//     and how to get it; octet doctor prints it. Nothing is linked: every
//     library is loaded when the probe asks for it (package octet/csrc/libcuda,
//     and go-nvml for the driver's version), so a build needs no CUDA toolkit
//     and one binary meets CUDA 12 and 13.
//   - Lower and Open refuse, with backend.ErrUnsupported and
//     backend.ErrNoDevice, and Available says so: this version does not train
//     on CUDA, with or without the tag.
package cuda

import (
	"fmt"
	"strconv"

	"octet/backend"
	"octet/fp8"
)

func init() {
	backend.Register(backend.Driver{
		Name:      "cuda",
		Rank:      20,
		Available: available,
		Spec:      spec,
		Lower:     lower,
		Open:      open,
		Probe:     probe,
	})
}

func available() error {
	return fmt.Errorf("this version finds NVIDIA GPUs (built with -tags cuda) but does not train on them, so there is %w to run on; use --backend emu", backend.ErrNoDevice)
}

// spec is what cuBLASLt documents for Ada and Hopper (compute capability 8.9
// and 9.0): E4M3 as OCP defines it, and every pair of FP8 operands but
// E5M2×E5M2. The alignment is that of cuMemAlloc and of cuBLASLt's workspace.
// Casts are kernels of our own, which can draw any random bits.
func spec(device string) (backend.Spec, error) {
	if device != "" {
		if _, err := strconv.ParseUint(device, 10, 16); err != nil {
			return backend.Spec{}, fmt.Errorf("unknown device %q of backend cuda (known: the number of a GPU, such as cuda:0, or plain cuda)", device)
		}
	}
	return backend.Spec{
		Backend: "cuda", Device: "Ada or Hopper", E4M3: fp8.E4M3,
		Pairs: [][2]fp8.DType{
			{fp8.E4M3, fp8.E4M3}, {fp8.E4M3, fp8.E5M2}, {fp8.E5M2, fp8.E4M3},
		},
		Stochastic: true,
		Align:      256,
	}, nil
}

func open(device string, _ backend.Options) ([]backend.Backend, error) {
	if _, err := spec(device); err != nil {
		return nil, err
	}
	return nil, fmt.Errorf("backend cuda: %w", available())
}
