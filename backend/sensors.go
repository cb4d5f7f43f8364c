package backend

import (
	"fmt"
	"strings"
)

// Sensors reads a device's state while it works. Sensors are independent of the Backend
// that opened them and stay usable after it is closed, until their own Close.
type Sensors interface {
	// Read reads all sensors. It may take tens of milliseconds. It may be called from
	// any goroutine, one at a time, also while a program runs, because it does not use
	// the device's own thread. Values that the device does not report are nil. An error
	// means that the device did not answer; a later call may succeed.
	Read() (Reading, error)
	Close() error
}

// Sensed is a Backend whose device has sensors.
type Sensed interface {
	Backend
	// Sensors opens the sensors. The device works without them; an error says what is
	// missing.
	Sensors() (Sensors, error)
}

// Reading is a device's state at one moment; nil means unknown.
type Reading struct {
	Utilization *float64 // share of the last sampling period in which the device was busy, within [0, 1]
	MemoryUsed  *int64   // bytes, by all processes
	MemoryTotal *int64   // bytes
	Power       *float64 // W, of the whole board
	Temperature *float64 // °C
	Clock       *float64 // MHz, of the compute units
	Throttled   []string // what lowers the clock, in words; empty but not nil if nothing does

	// Energy is the board's energy use in J since a fixed moment: only differences are
	// meaningful. The device's own counter reports it, unless EnergyEstimated says that
	// it was computed from Power.
	Energy          *float64
	EnergyEstimated bool
}

// String lists the known values, then the names of the unknown ones.
func (r Reading) String() string {
	var known, unknown []string
	say := func(name string, ok bool, text func() string) {
		if ok {
			known = append(known, text())
		} else {
			unknown = append(unknown, name)
		}
	}
	number := func(name string, x *float64, unit float64, format string) {
		say(name, x != nil, func() string { return fmt.Sprintf(format, unit**x) })
	}
	number("utilisation", r.Utilization, 100, "%.0f%% busy")
	say("memory", r.MemoryUsed != nil && r.MemoryTotal != nil, func() string {
		return fmt.Sprintf("%.1f of %.1f GiB used", float64(*r.MemoryUsed)/(1<<30), float64(*r.MemoryTotal)/(1<<30))
	})
	number("power", r.Power, 1, "%.0f W")
	number("temperature", r.Temperature, 1, "%.0f °C")
	number("clock", r.Clock, 1, "%.0f MHz")
	say("throttling", r.Throttled != nil, func() string {
		if len(r.Throttled) == 0 {
			return "not throttled"
		}
		return "throttled by " + strings.Join(r.Throttled, " and ")
	})
	say("energy", r.Energy != nil, func() string { return "counts its energy" })
	text := strings.Join(known, ", ")
	if len(unknown) > 0 {
		text = strings.TrimPrefix(text+"; does not report "+strings.Join(unknown, ", "), "; ")
	}
	return text
}
