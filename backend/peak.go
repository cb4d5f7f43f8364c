package backend

// Meter measures the two limits of a device's roofline, one burst of a few
// milliseconds at a time, so that bursts can alternate with the work that is
// compared with them: what a shared machine reaches drifts. A Meter is used
// like the Backend that it comes from, by one goroutine at a time and not while
// a program runs there.
type Meter interface {
	// FLOPs is the rate, per second, of the multiplications and additions that
	// the device's matrix product of FP8 operands does where they are at hand: those
	// of wider ones may be far from it.
	FLOPs() float64
	// Bytes is the rate of a copy of memory beyond the caches, in bytes read
	// and bytes written per second. It is a yardstick, not a ceiling: an update
	// in place, or a read, can be faster where a processor fetches the lines
	// that a copy is about to overwrite.
	Bytes() float64
}

// Metered is a Backend that can measure its device.
type Metered interface {
	Backend
	// Meter returns a meter, which may hold memory until it is dropped.
	Meter() Meter
}

// Peaks is a device's roofline; 0 is not known.
type Peaks struct {
	FLOPs float64 // per second
	Bytes float64 // per second, read and written
}

// Floor is the time in seconds that a cost takes at these peaks: that of the
// axis which limits it.
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
