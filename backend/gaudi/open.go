//go:build gaudi && cgo && linux

package gaudi

import (
	"fmt"

	"octet/backend"
	"octet/csrc/libsynapse"
)

// available returns nil if this machine has the device. It does not check whether the
// device is free: the only way is to acquire it.
func available(device string) error {
	opts, err := parse(device)
	if err != nil {
		return err
	}
	s, err := present()
	if err != nil {
		return err
	}
	if opts.model == "gaudi2" && s.Gaudi2 == 0 || opts.model == "gaudi3" && s.Gaudi3 == 0 {
		return fmt.Errorf("%w of model %s: SynapseAI shows %d Gaudi 2 and %d Gaudi 3", backend.ErrNoDevice, opts.model, s.Gaudi2, s.Gaudi3)
	}
	return nil
}

// present returns SynapseAI's device counts, or an error if this machine cannot use them.
func present() (libsynapse.Synapse, error) {
	s, err := libsynapse.Probe()
	switch {
	case err != nil:
		fix := fixDevice
		if s.Path == "" {
			fix = fixSynapse
		}
		return s, fmt.Errorf("there is %w: SynapseAI does not answer: %w; %s", backend.ErrNoDevice, err, fix)
	case s.Gaudi2+s.Gaudi3 == 0:
		return s, fmt.Errorf("there is %w: SynapseAI shows no Gaudi 2 or 3; %s", backend.ErrNoDevice, fixDevice)
	case tooOld(s.Version):
		return s, fmt.Errorf("there is %w that can be used: SynapseAI is version %s; %s", backend.ErrNoDevice, s.Version, fixVersion)
	}
	if _, err := libsynapse.Kernels(); err != nil {
		return s, fmt.Errorf("there is %w that can be used: %w", backend.ErrNoDevice, err)
	}
	return s, nil
}

// modelHere returns the model of this machine's devices, or "" without one.
func modelHere() string {
	s, err := libsynapse.Probe()
	switch {
	case err == nil && s.Gaudi3 > 0: // as libsynapse.Open chooses
		return "gaudi3"
	case err == nil && s.Gaudi2 > 0:
		return "gaudi2"
	}
	return ""
}

// openRanks opens one device for each rank.
func openRanks(module, ranks int) ([]synapse, error) {
	if ranks == 1 {
		s, err := openLocal(module)
		return []synapse{s}, err
	}
	here, err := present()
	if err != nil {
		return nil, err
	}
	devices := here.Gaudi2 + here.Gaudi3
	if ranks > devices {
		return nil, fmt.Errorf("%w: %d ranks need a device each, and SynapseAI shows %d: set train.ranks=%[3]d", backend.ErrUnsupported, ranks, devices)
	}
	held, err := yield()
	switch {
	case err != nil:
		return nil, fmt.Errorf("release this process's device for its ranks: %w", err)
	case held && ranks == devices:
		return nil, fmt.Errorf("%w: %d ranks need all devices, and this process uses one of them: close that backend first", backend.ErrUnsupported, ranks)
	}
	w, err := startWorkers(module, ranks)
	if err != nil {
		return nil, err
	}
	list := make([]synapse, ranks)
	for i, one := range w.list {
		list[i] = one.remote
	}
	return list, nil
}
