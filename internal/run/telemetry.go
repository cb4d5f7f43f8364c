package run

import (
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"octet/backend"
)

const (
	readEvery = time.Second
	// What was read longer ago says nothing about the step under way.
	stale = 5 * time.Second
	// How long the end of a run waits for the last reading. A device that is lost
	// may never answer, and there is a message to print about it.
	patience = 2 * time.Second
)

// telemetry reads the sensors of a run's devices every second while it trains:
// from a goroutine of its own, because to ask takes longer than many a step. A
// device that has no sensors, or whose sensors fail, trains on.
type telemetry struct {
	sensors []backend.Sensors // by device; nil where there are none
	meters  []energyMeter
	latest  atomic.Pointer[snapshot]
	failed  bool
	trouble chan error    // the first failure, until somebody takes it
	stop    chan struct{} // closed for the goroutine to end; nil while there is none
	done    chan struct{} // closed when it did
	hung    bool          // it did not
}

type snapshot struct {
	at       time.Time
	readings []backend.Reading // by device; nil if none answered
}

// openTelemetry opens what sensors there are.
func openTelemetry(devices []backend.Backend) *telemetry {
	t := &telemetry{
		sensors: make([]backend.Sensors, len(devices)), meters: make([]energyMeter, len(devices)),
		trouble: make(chan error, 1),
	}
	for i, d := range devices {
		if d, ok := d.(backend.Sensed); ok {
			s, err := d.Sensors()
			if err != nil {
				t.fail(err)
				continue
			}
			t.sensors[i] = s
		}
	}
	return t
}

// begin reads once, and goes on every second until end.
func (t *telemetry) begin() {
	if !slices.ContainsFunc(t.sensors, func(s backend.Sensors) bool { return s != nil }) {
		return
	}
	t.read()
	t.stop, t.done = make(chan struct{}), make(chan struct{})
	go t.watch(t.stop, t.done)
}

func (t *telemetry) watch(stop <-chan struct{}, done chan<- struct{}) {
	defer close(done)
	defer t.read()
	tick := time.NewTicker(readEvery)
	defer tick.Stop()
	for {
		select {
		case <-stop:
			return
		case <-tick.C:
			t.read()
		}
	}
}

// end waits for a last reading.
func (t *telemetry) end() {
	if t.stop == nil {
		return
	}
	close(t.stop)
	t.stop = nil
	select {
	case <-t.done:
	case <-time.After(patience):
		t.hung = true
	}
}

// read asks all devices. It is called by one goroutine at a time.
func (t *telemetry) read() {
	readings := make([]backend.Reading, len(t.sensors))
	answered := false
	for i, s := range t.sensors {
		if s == nil {
			continue
		}
		r, err := s.Read()
		if err != nil {
			t.fail(err)
		}
		answered = answered || err == nil
		t.meters[i].add(time.Now(), &r)
		readings[i] = r
	}
	if !answered {
		readings = nil
	}
	t.latest.Store(&snapshot{time.Now(), readings})
}

// fail keeps the first failure: one is enough to know.
func (t *telemetry) fail(err error) {
	if !t.failed {
		t.failed = true
		t.trouble <- err
	}
}

// now is the latest reading of each device; nil where there is none.
func (t *telemetry) now() []backend.Reading {
	if s := t.latest.Load(); s != nil && time.Since(s.at) <= stale {
		return s.readings
	}
	return nil
}

// failure is why a device does not tell, once.
func (t *telemetry) failure() error {
	select {
	case err := <-t.trouble:
		return fmt.Errorf("the sensors of the device do not answer: %w", err)
	default:
		return nil
	}
}

// energy is what all devices used between begin and the latest reading; ok says
// that it is known of each.
func (t *telemetry) energy() (e Energy, ok bool) {
	s := t.latest.Load()
	if s == nil || s.readings == nil || t.hung {
		return Energy{}, false
	}
	for _, r := range s.readings {
		if r.Energy == nil {
			return Energy{}, false
		}
		e.Joules += *r.Energy
		e.Estimated = e.Estimated || r.EnergyEstimated
	}
	return e, true
}

// close lets go of sensors that are not waited for.
func (t *telemetry) close() error {
	t.end()
	if t.hung {
		return nil
	}
	var errs []error
	for _, s := range t.sensors {
		if s != nil {
			errs = append(errs, s.Close())
		}
	}
	return errors.Join(errs...)
}

// Energy is what devices used.
type Energy struct {
	Joules    float64
	Estimated bool // from readings of the power, one a second; else counted by the devices
}

// energyMeter works out the energy of one device since its first reading: by the
// device's own count where it has one, else by its power.
type energyMeter struct {
	source source
	count  float64   // at the first reading
	at     time.Time // of the last known power
	power  float64   // W, then
	sum    float64   // J until then
}

// source is decided by the first reading: of what it does not tell, the
// beginning is missing.
type source int

const (
	undecided source = iota
	counted
	integrated
	unknown
)

// add puts the energy since the first reading into r.
func (m *energyMeter) add(at time.Time, r *backend.Reading) {
	if m.source == undecided {
		switch {
		case r.Energy != nil:
			m.source, m.count = counted, *r.Energy
		case r.Power != nil:
			m.source, m.at, m.power = integrated, at, *r.Power
		default:
			m.source = unknown
		}
	}
	switch {
	case m.source == counted && r.Energy != nil:
		r.Energy = new(*r.Energy - m.count)
	case m.source == integrated && r.Power != nil:
		// The trapezoidal rule, also across readings that failed.
		m.sum += (m.power + *r.Power) / 2 * at.Sub(m.at).Seconds()
		m.at, m.power = at, *r.Power
		r.Energy, r.EnergyEstimated = new(m.sum), true
	default:
		r.Energy = nil
	}
}
