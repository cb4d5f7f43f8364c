// Package bench measures the rates that octet bench prints: of whole training steps and of
// their main ops, beside the peaks of the device.
//
// The speed of a shared machine may change several-fold within seconds. So only interleaved
// measurements are compared: bursts of the work alternate with bursts of the peak, and the
// median of each counts. Everything runs through package backend, one op per program, so
// that any backend can be measured; one that is not backend.Metered gets rates without
// shares of the peak.
//
// An op's bytes count each operand once, as in backend.Cost. An op on data that fits the
// caches, or that updates in place, can be faster than the copy; see backend.Meter.
package bench

import (
	"slices"

	"octet/backend"
	"octet/backend/cost"
	"octet/internal/hostmem"
)

// Options says where to measure, and for how long.
type Options struct {
	Backend string  // name:device, as given; empty picks the best
	Threads int     // of the CPU backend; 0 is all processors
	Seconds float64 // for each measurement, which takes at least minBursts bursts
}

// Result is one measurement. Times are in seconds for one execution. JSON omits zeros, which
// mean not measured, or unknown on this backend.
type Result struct {
	Bench   string  `json:"bench"`           // peak, gemm, attention, layers, step, quantize or optimizer
	Name    string  `json:"name"`            // of the case
	Shape   string  `json:"shape,omitempty"` // "1024x2048x768"; MxNxK for a GEMM
	Backend string  `json:"backend"`
	Device  string  `json:"device"`
	Repeats int     `json:"repeats"`
	Median  float64 `json:"median_s,omitempty"`
	Min     float64 `json:"min_s,omitempty"`
	Max     float64 `json:"max_s,omitempty"`

	// Rates at the median time, and the medians of the peaks between the bursts. Peaks are
	// those of all threads, except in the peak result of one thread.
	GFLOPs     float64 `json:"gflops,omitempty"` // per second
	PeakGFLOPs float64 `json:"peak_gflops,omitempty"`
	PeakShare  float64 `json:"peak_share,omitempty"`
	GBytes     float64 `json:"gbytes_per_s,omitempty"`
	CopyGBytes float64 `json:"copy_gbytes_per_s,omitempty"` // read and written
	CopyShare  float64 `json:"copy_share,omitempty"`

	*Step
	// Unsupported says why the backend does not run the case; all rates are then 0.
	Unsupported string `json:"unsupported,omitempty"`
}

// Bench is a device to measure on.
type Bench struct {
	o      Options
	spec   backend.Spec
	device backend.Backend // without programs, for its meter
	meter  backend.Meter   // nil if it has none
	// samples are what was measured, for Extend, by the name of the bench.
	samples map[string][]cost.Sample
	steps   []measuredStep
}

// Open finds the backend and opens its meter. Its errors are those of the user's input.
func Open(o Options) (*Bench, error) {
	hostmem.LimitGo()
	b := &Bench{o: o}
	var err error
	if b.device, err = b.open(o.Threads); err != nil {
		return nil, err
	}
	b.spec = b.device.Spec()
	if m, ok := b.device.(backend.Metered); ok {
		b.meter = m.Meter()
	}
	return b, nil
}

func (b *Bench) open(threads int) (backend.Backend, error) {
	return backend.Open(b.o.Backend, backend.Options{Threads: threads})
}

// Close closes the meter's device.
func (b *Bench) Close() error { return b.device.Close() }

// peakSeconds is the time to measure the peaks that are printed first.
const peakSeconds = 0.15

// Peaks measures the current peaks of one thread, if the device has several, and of all
// threads. The list is empty if the device has no meter.
func (b *Bench) Peaks() ([]Result, error) {
	if b.meter == nil {
		return nil, nil
	}
	var list []Result
	one, err := b.open(1)
	if err != nil {
		return nil, err
	}
	if m, ok := one.(backend.Metered); ok && one.Spec().Device != b.spec.Device {
		list = append(list, peaks(one.Spec(), m.Meter()))
	}
	list = append(list, peaks(b.spec, b.meter))
	return list, one.Close()
}

func peaks(s backend.Spec, m backend.Meter) Result {
	samples, _ := interleave(peakSeconds, rate(m.FLOPs), rate(m.Bytes)) // neither fails
	return Result{
		Bench: "peak", Name: "FMA and copy", Backend: s.Backend, Device: s.Device, Repeats: len(samples[0]),
		PeakGFLOPs: median(samples[0]) / 1e9, CopyGBytes: median(samples[1]) / 1e9,
	}
}

// result completes r from the seconds of each execution and the peak between them.
func (b *Bench) result(r Result, seconds []float64, cost backend.Cost, l limit, peak float64) Result {
	r.Backend, r.Device = b.spec.Backend, b.spec.Device
	r.Repeats = len(seconds)
	r.Median, r.Min, r.Max = median(seconds), slices.Min(seconds), slices.Max(seconds)
	r.GFLOPs, r.GBytes = float64(cost.FLOPs)/r.Median/1e9, float64(cost.Bytes)/r.Median/1e9
	switch {
	case peak == 0:
	case l == byFLOPs:
		r.PeakGFLOPs = peak / 1e9
		r.PeakShare = r.GFLOPs / r.PeakGFLOPs
	default:
		r.CopyGBytes = peak / 1e9
		r.CopyShare = r.GBytes / r.CopyGBytes
	}
	return r
}
