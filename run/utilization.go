package run

import "time"

// intervalBursts is the number of bursts that measure the devices between steps. An
// interval lasts intervalPerCost times as long as the measurement before it, or until the
// run's last step.
const (
	intervalBursts  = 3
	intervalPerCost = 500
)

// utilization compares the steps of an interval with the devices' peak. It measures the peak
// at both ends of the interval, while the devices are idle, because the peak of a shared or a
// hot machine drifts.
type utilization struct {
	measure func() float64 // FLOP/s of all devices; 0: unknown
	now     func() time.Time

	metered bool      // the devices can be measured
	peak    float64   // at the beginning of the interval
	due     time.Time // the interval ends with the first step after this time
	flops   float64   // of the interval's steps
	seconds float64   // of the interval's steps
	latest  *float64  // share of the last whole interval; nil: unknown
	rate    float64   // FLOP/s of that interval
	above   bool      // the steps of the last interval were faster than both of its peaks

	reported bool // tooFast has returned true
}

// begin opens the first interval and finds out whether the devices can be measured.
func (u *utilization) begin() {
	u.open()
	u.metered = u.peak > 0
}

// open measures the peak and opens an interval.
func (u *utilization) open() {
	start := u.now()
	u.peak = u.measure()
	end := u.now()
	u.flops, u.seconds, u.due = 0, 0, end.Add(intervalPerCost*end.Sub(start))
}

// add counts a step.
func (u *utilization) add(flops, seconds float64) {
	u.flops += flops
	u.seconds += seconds
}

// ends reports whether the interval ends with the next step, which may be the run's
// last one.
func (u *utilization) ends(last bool) bool {
	return u.metered && (last || !u.now().Before(u.due))
}

// end closes the interval and opens the next one. It returns the steps' share of the larger
// of the interval's two peaks; nil if a peak is unknown, or if the share is above 1 because
// another load slowed down both measurements.
func (u *utilization) end() *float64 {
	before := u.peak
	u.rate = u.flops / u.seconds
	u.open()
	share := u.rate / max(before, u.peak)
	known := before > 0 && u.peak > 0
	u.latest, u.above = nil, known && share > 1
	if known && share <= 1 {
		u.latest = &share
	}
	return u.latest
}

// tooFast reports, once in a run, that the steps of the last interval were faster than
// both of its peaks.
func (u *utilization) tooFast() bool {
	if !u.above || u.reported {
		return false
	}
	u.reported = true
	return true
}
