//go:build gaudi && cgo && linux

package gaudi

import (
	"fmt"

	"octet/backend"
	"octet/backend/world"
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

// openRank opens the device of a rank: that of the module number, counted on by the ranks of
// this machine, or any device with -1.
func openRank(module int, g *world.Group) (synapse, error) {
	if g == nil {
		return openLocal(module)
	}
	if g.InProcess() {
		return nil, fmt.Errorf("%w: SynapseAI gives a process one device: start each of the %d ranks as a process, as octet train --ranks does", backend.ErrUnsupported, g.Size())
	}
	here, err := present()
	if err != nil {
		return nil, err
	}
	local := g.Place().LocalRank
	if devices := here.Gaudi2 + here.Gaudi3; local >= devices {
		return nil, fmt.Errorf("%w: %d or more ranks of this machine need a device each, and SynapseAI shows %d", backend.ErrUnsupported, local+1, devices)
	}
	if module >= 0 {
		module += local
	}
	return openLocal(module)
}
