package backend

import (
	"fmt"
	"strings"
)

// Sensors are what a device has to say of itself while it works. They are the
// device's, not those of the Backend that they come from: they go on when it is
// closed, until their own Close.
type Sensors interface {
	// Read asks all sensors. It may take tens of milliseconds, and may be called
	// from any goroutine, one at a time, also while a program runs: the device's
	// own thread is not involved. What the device does not tell is absent from the
	// reading. An error says that it did not answer; a later call may find it better.
	Read() (Reading, error)
	Close() error
}

// Sensed is a Backend whose device has sensors.
type Sensed interface {
	Backend
	// Sensors opens them. An error says what is missing; the device works without.
	Sensors() (Sensors, error)
}

// Reading is a device at one moment. Nil is not known.
type Reading struct {
	Utilization *float64 // share of the last moments in which the device ran anything, within [0, 1]
	MemoryUsed  *int64   // bytes, by all processes
	MemoryTotal *int64   // bytes
	Power       *float64 // W, of the whole board
	Temperature *float64 // °C
	Clock       *float64 // MHz, of what computes
	Throttled   []string // what holds the clock down, in words; empty but not nil where nothing does

	// Energy is what the board has used, in J, since a moment that stays the
	// same: only differences mean something. It is the count of a meter in the
	// device unless EnergyEstimated says that it was worked out from Power.
	Energy          *float64
	EnergyEstimated bool
}

// String lists what is known, then names what is not.
func (r Reading) String() string {
	var known, unknown []string
	say := func(name string, ok bool, text func() string) {
		if ok {
			known = append(known, text())
		} else {
			unknown = append(unknown, name)
		}
	}
	number := func(name string, x *float64, factor float64, format string) {
		say(name, x != nil, func() string { return fmt.Sprintf(format, factor**x) })
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
		text = strings.TrimPrefix(text+"; does not tell "+strings.Join(unknown, ", "), "; ")
	}
	return text
}
