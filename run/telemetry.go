package run

import (
	"encoding/json"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"octet/backend"
)

const (
	readEvery = time.Second
	// An older reading says nothing about the current step.
	stale = 5 * time.Second
	// How long the end of a run waits for the last reading. A lost device may never answer,
	// and its error must still be printed.
	lastReadTimeout = 2 * time.Second
)

// telemetry reads the sensors of a rank's device every second while it trains. It reads in a
// goroutine, because a reading may take longer than a step. Devices without sensors, or with
// failing ones, train all the same.
type telemetry struct {
	sensors backend.Sensors // nil for a device without sensors
	meter   energyMeter
	latest  atomic.Pointer[snapshot]
	failed  bool
	trouble chan error    // the first failure, until failure returns it
	stop    chan struct{} // closed to end the goroutine; nil without one
	done    chan struct{} // closed when the goroutine has ended
	hung    bool          // the goroutine has not ended in time

	ranks []backend.Reading // of all ranks, as they told each other; nil if none has any
}

type snapshot struct {
	at      time.Time
	reading *backend.Reading // nil if the device did not answer
}

// openTelemetry opens the sensors of a device that has some.
func openTelemetry(device backend.Backend) *telemetry {
	t := &telemetry{trouble: make(chan error, 1)}
	if d, ok := device.(backend.Sensed); ok {
		s, err := d.Sensors()
		if err != nil {
			t.fail(err)
			return t
		}
		t.sensors = s
	}
	return t
}

// begin reads the sensors now, and then every second until end.
func (t *telemetry) begin() {
	if t.sensors == nil {
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
	case <-time.After(lastReadTimeout):
		t.hung = true
	}
}

// read reads the sensors. One goroutine at a time may call it.
func (t *telemetry) read() {
	r, err := t.sensors.Read()
	if err != nil {
		t.fail(err)
		t.latest.Store(&snapshot{time.Now(), nil})
		return
	}
	t.meter.add(time.Now(), &r)
	t.latest.Store(&snapshot{time.Now(), &r})
}

// fail records the first failure and drops later ones.
func (t *telemetry) fail(err error) {
	if !t.failed {
		t.failed = true
		t.trouble <- err
	}
}

// now returns the latest reading; nil if there is none.
func (t *telemetry) now() *backend.Reading {
	if s := t.latest.Load(); s != nil && time.Since(s.at) <= stale {
		return s.reading
	}
	return nil
}

// message returns the latest reading for the other ranks; nothing if there is none.
func (t *telemetry) message() []byte {
	r := t.now()
	if r == nil {
		return nil
	}
	text, err := json.Marshal(r)
	if err != nil { // a value that is not finite
		return nil
	}
	return text
}

// receive takes the messages of all ranks.
func (t *telemetry) receive(messages [][]byte) error {
	t.ranks = nil
	if !slices.ContainsFunc(messages, func(m []byte) bool { return len(m) > 0 }) {
		return nil
	}
	t.ranks = make([]backend.Reading, len(messages))
	for rank, m := range messages {
		if len(m) == 0 {
			continue
		}
		if err := json.Unmarshal(m, &t.ranks[rank]); err != nil {
			return fmt.Errorf("the sensors of rank %d: %w", rank, err)
		}
	}
	return nil
}

// failure returns the first failure of the sensors, once; nil afterwards.
func (t *telemetry) failure() error {
	select {
	case err := <-t.trouble:
		return fmt.Errorf("the device's sensors cannot be read: %w", err)
	default:
		return nil
	}
}

// energy returns the energy of a device between begin and the latest reading, or of the devices
// of all ranks; ok says that it is known for each of them.
func (t *telemetry) energy(rank int) (e Energy, ok bool) {
	s := t.latest.Load()
	if s == nil || s.reading == nil || t.hung {
		return Energy{}, false
	}
	all := []backend.Reading{*s.reading}
	if t.ranks != nil {
		all = slices.Clone(t.ranks)
		all[rank] = *s.reading
	}
	for _, r := range all {
		if r.Energy == nil {
			return Energy{}, false
		}
		e.Joules += *r.Energy
		e.Estimated = e.Estimated || r.EnergyEstimated
	}
	return e, true
}

// close ends the readings and closes the sensors, unless a reading hangs.
func (t *telemetry) close() error {
	t.end()
	if t.hung {
		return nil
	}
	if t.sensors == nil {
		return nil
	}
	return t.sensors.Close()
}

// Energy is the energy of devices.
type Energy struct {
	Joules    float64
	Estimated bool // integrated from power readings, one a second; otherwise counted by the devices
}

// energyMeter computes the energy of one device since its first reading: from the device's
// energy counter if it has one, otherwise from its power.
type energyMeter struct {
	source source
	count  float64   // the counter at the first reading
	at     time.Time // time of the last known power
	power  float64   // W, at that time
	sum    float64   // J, until that time
}

// source is how the energy is measured. The first reading decides: a value that appears
// later lacks the beginning.
type source int

const (
	undecided source = iota
	counted
	integrated
	unknown
)

// add sets the energy since the first reading in r.
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
		// Trapezoidal rule, also across failed readings.
		m.sum += (m.power + *r.Power) / 2 * at.Sub(m.at).Seconds()
		m.at, m.power = at, *r.Power
		r.Energy, r.EnergyEstimated = new(m.sum), true
	default:
		r.Energy = nil
	}
}
