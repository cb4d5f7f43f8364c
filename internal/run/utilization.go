package run

import "time"

// How many bursts measure the devices between steps, and how many times as long as
// that measurement the next interval is: the cost stays below 0.2 % of the time.
const (
	intervalBursts  = 3
	intervalPerCost = 500
)

// utilization compares the steps of an interval with what the devices reach. It
// measures that where the interval begins and where it ends, between steps, while the
// devices are idle: the peak of a shared or a hot machine drifts.
type utilization struct {
	measure func() float64 // FLOP/s of all devices; 0: not known
	now     func() time.Time

	metered bool      // the devices can be measured
	peak    float64   // where the interval began
	due     time.Time // the interval ends with the first step after that
	flops   float64   // of the interval's steps
	seconds float64   // that they took
	latest  *float64  // share of the last whole interval; nil: not known
	above   bool      // the steps of the last interval were faster than both of its peaks
}

// begin opens the first interval at a peak that took so long to measure.
func (u *utilization) begin(peak float64, took time.Duration) {
	u.metered, u.peak, u.due = peak > 0, peak, u.now().Add(intervalPerCost*took)
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

// end measures, closes the interval and opens the next one. It returns the steps'
// share of the larger of the interval's two peaks; nil where a peak is not known, or
// where the share is above 1: something slowed down both measurements.
func (u *utilization) end() *float64 {
	start := u.now()
	after := u.measure()
	end := u.now()
	share := u.flops / u.seconds / max(u.peak, after)
	known := u.peak > 0 && after > 0
	u.latest, u.above = nil, known && share > 1
	if known && share <= 1 {
		u.latest = &share
	}
	u.peak, u.flops, u.seconds, u.due = after, 0, 0, end.Add(intervalPerCost*end.Sub(start))
	return u.latest
}
