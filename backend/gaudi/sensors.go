//go:build gaudi && cgo && linux

package gaudi

import (
	"errors"

	"octet/backend"
	"octet/csrc/libsynapse"
)

// sensors are the sensors of one device, read by HLML. It works for any rank's device,
// because HLML asks the driver and acquires no device.
type sensors struct{ *libsynapse.Telemetry }

// Sensors implements backend.Sensed.
func (d *device) Sensors() (backend.Sensors, error) {
	bus := d.hardware().Bus
	if bus == "" {
		return nil, errors.New("SynapseAI does not report this device's PCI address, which identifies it in HLML")
	}
	t, err := libsynapse.OpenTelemetry(bus)
	if err != nil {
		return nil, err
	}
	return sensors{t}, nil
}

func (s sensors) Read() (backend.Reading, error) {
	r, err := s.Telemetry.Read()
	if err != nil {
		return backend.Reading{}, err
	}
	return readingOf(r), nil
}

func readingOf(r libsynapse.Reading) backend.Reading {
	out := backend.Reading{
		Utilization: r.Utilization, MemoryUsed: rounded(r.MemoryUsed), MemoryTotal: rounded(r.MemoryTotal),
		Power: r.Power, Temperature: r.Temperature, Energy: r.Energy,
	}
	if r.Clock != nil {
		out.Clock = new(*r.Clock / 1e6)
	}
	if r.ThrottledByPower != nil && r.ThrottledByHeat != nil {
		out.Throttled = []string{}
		if *r.ThrottledByPower {
			out.Throttled = append(out.Throttled, "power cap")
		}
		if *r.ThrottledByHeat {
			out.Throttled = append(out.Throttled, "heat")
		}
	}
	return out
}

func rounded(x *float64) *int64 {
	if x == nil {
		return nil
	}
	return new(int64(*x))
}
