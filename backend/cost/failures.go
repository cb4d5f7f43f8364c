package cost

import "math"

// Failures are the interruptions of a run: any device that fails stops all.
type Failures struct {
	MTBF    float64 // mean time between failures of the whole machine, s
	Save    float64 // time that a checkpoint takes, s
	Restart float64 // time from a failure to the first step after it, s
}

// Interval returns the time between checkpoints, in seconds, that loses the least: √(2·Save·MTBF)
// (Young 1974), or Daly's estimate of higher order (2006) if saving takes more than a fiftieth of
// the MTBF.
func (f Failures) Interval() float64 {
	if f.Save <= f.MTBF/50 {
		return math.Sqrt(2 * f.Save * f.MTBF)
	}
	if f.Save >= 2*f.MTBF {
		return f.MTBF
	}
	ratio := f.Save / (2 * f.MTBF)
	return math.Sqrt(2*f.Save*f.MTBF)*(1+math.Sqrt(ratio)/3+ratio/9) - f.Save
}

// Overhead returns the time that saving, repeated work and restarts take, over the time of the
// steps, with a checkpoint every interval seconds.
func (f Failures) Overhead(interval float64) float64 {
	return f.Save/interval + interval/(2*f.MTBF) + f.Restart/f.MTBF
}
