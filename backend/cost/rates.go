package cost

import (
	"fmt"
	"maps"
	"slices"
)

// rates are a machine's numbers in SI units, read once for a prediction.
type rates struct {
	m        *Machine
	used     map[string]bool
	missing  map[string]bool // keys without a curve
	formats  map[string]gemmRate
	bytes    float64 // per second
	forward  float64 // FLOP/s of attention
	backward float64
	gemm     float64
	rest     float64
	units    float64
	tileK    float64
	launch   float64 // seconds
	hidden   float64
	wire     float64 // bytes per second; 0: one device
	latency  float64 // seconds
}

// gemmRate is the rate of large GEMMs of one format, FLOP/s.
type gemmRate struct{ rate float64 }

// number returns a number and records that the prediction depends on it.
func (r *rates) number(name string) (float64, error) {
	n, ok := r.m.Numbers[name]
	if !ok {
		return 0, &MissingError{Device: r.m.Device, Name: name}
	}
	r.used[name] = true
	return n.Value, nil
}

// MissingError says that no source gives a number. It wraps ErrNoData.
type MissingError struct{ Device, Name string }

func (e *MissingError) Error() string {
	return fmt.Sprintf("no data for %s of %s (%s): measure it there by octet bench --calibrate, or give a value by --assume %s=VALUE",
		e.Name, e.Device, meaning[e.Name], e.Name)
}

func (e *MissingError) Unwrap() error { return ErrNoData }

// rates reads the numbers that a step needs.
func (m *Machine) rates(s *Step) (*rates, error) {
	r := &rates{m: m, used: map[string]bool{}, missing: map[string]bool{}, formats: map[string]gemmRate{}}
	var first error
	get := func(name string) float64 {
		x, err := r.number(name)
		if err != nil && first == nil {
			first = err
		}
		return x
	}
	r.bytes = get("bandwidth") * 1e12 * get("copy_share")
	r.gemm, r.rest = get("gemm"), get("rest")
	if r.units = get("processors"); r.units > 0 {
		r.tileK = get("tile_k")
	}
	r.launch = get("launch") * 1e-6
	for _, f := range s.formats {
		r.formats[f] = gemmRate{get(f+"_peak") * 1e12 * get(f+"_share")}
	}
	if s.has(Attention) {
		peak := get("bf16_peak") * 1e12
		r.forward, r.backward = peak*get("attention_forward"), peak*get("attention_backward")
	}
	if m.Devices() > 1 && s.has(Communication) {
		bandwidth := get("link")
		if m.Nodes > 1 {
			// Every device of a node sends to other nodes through its own NIC. A node of one
			// device has no link.
			across := get("nic") * float64(m.PerNode)
			if m.PerNode == 1 {
				bandwidth = across
			}
			bandwidth = min(bandwidth, across)
		}
		r.wire = bandwidth * 1e9 * get("wire_share")
		r.latency = get("latency") * 1e-6 * levels(m.Nodes)
		r.hidden = get("hidden")
	}
	return r, first
}

// has reports whether a step has ops of a class.
func (s *Step) has(c Class) bool {
	for _, p := range s.passes {
		for i := range p.work {
			if p.work[i].class == c {
				return true
			}
		}
	}
	return false
}

// time returns the seconds of an op and what limits it.
func (r *rates) time(w *work) (float64, Bound) {
	if w.class == Communication {
		return r.collective(w)
	}
	if c := r.m.Calibration; c != nil {
		if curve, ok := c.curve(w.key); ok {
			return curve.time(w.flops, w.bytes)
		}
		r.missing[w.key] = true
	}
	memory := w.bytes / r.bytes
	t, bound := memory, ByBytes
	switch w.class {
	case GEMM:
		if compute := w.flops / (r.formats[w.format].rate * r.gemm * r.shape(w)); compute > memory {
			t, bound = compute, ByFLOPs
		}
	case Attention:
		rate := r.forward
		if w.backward {
			rate = r.backward
		}
		if compute := w.flops / rate; compute > memory {
			t, bound = compute, ByFLOPs
		}
		t *= r.rest
	case RowOps:
		t *= r.rest
	case Casts, Optimizer, Communication, classes:
	}
	if r.launch > t {
		bound = ByLatency
	}
	return t + r.launch, bound
}

// shape returns the share of the rate of large GEMMs that a GEMM of this shape reaches.
func (r *rates) shape(w *work) float64 {
	if r.units == 0 {
		return 1
	}
	waves := float64(ceilDiv(w.m, 128)*ceilDiv(w.n, 256)) / r.units
	return waves / (waves + 0.5) * float64(w.k) / (float64(w.k) + r.tileK)
}

func ceilDiv(a, b int) int { return (a + b - 1) / b }

// collective returns the time of a ring, whose latency is that of a tree where that is less.
func (r *rates) collective(w *work) (float64, Bound) {
	n := float64(r.m.Devices())
	if n == 1 {
		return 0, ByWire
	}
	wire := float64(w.passes) * w.bytes * (n - 1) / n / r.wire
	if r.latency > wire {
		return r.latency + wire, ByLatency
	}
	return r.latency + wire, ByWire
}

func (r *rates) usedNames() []string  { return slices.Sorted(maps.Keys(r.used)) }
func (r *rates) unmeasured() []string { return slices.Sorted(maps.Keys(r.missing)) }
