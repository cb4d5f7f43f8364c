package backend

// Meter measures the two limits of a device's roofline in bursts of a few milliseconds.
// Bursts can alternate with the work that is compared with them, because the rates of a
// shared machine drift. A Meter may be used by one goroutine at a time, and not while
// a program runs on its Backend.
type Meter interface {
	// FLOPs returns the rate of compute-bound FP8 GEMMs, in multiplications and
	// additions per second. The rate of wider formats may differ widely. 0 means unknown.
	FLOPs() float64
	// Bytes returns the copy bandwidth of memory beyond the caches: bytes read plus
	// bytes written, per second. It is a reference, not an upper bound: reads and
	// in-place updates can be faster on a processor that fetches the cache lines that a
	// copy overwrites. 0 means unknown.
	Bytes() float64
}

// Metered is a Backend that can measure its device.
type Metered interface {
	Backend
	// Meter returns a meter, which may hold memory until it is garbage-collected.
	Meter() Meter
}

// Peaks is a device's roofline; 0 means unknown.
type Peaks struct {
	FLOPs float64 // per second
	Bytes float64 // per second, read and written
}

// Floor returns the seconds that a cost takes at these peaks: the larger of the
// compute time and the memory time.
func (p Peaks) Floor(c Cost) float64 {
	var floor float64
	if p.FLOPs > 0 {
		floor = float64(c.FLOPs) / p.FLOPs
	}
	if p.Bytes > 0 {
		floor = max(floor, float64(c.Bytes)/p.Bytes)
	}
	return floor
}
