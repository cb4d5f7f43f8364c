package cost

import "math"

// Failures are the interruptions of a run: any device that fails stops all, and the run resumes from
// the last complete checkpoint. Times are in seconds.
type Failures struct {
	MTBF    float64 // mean time between failures of the whole machine
	Save    float64 // time for which a checkpoint stops the steps
	Write   float64 // time from then until the checkpoint is complete, while steps run
	Restart float64 // time from a failure to the first step after it
}

// Interval returns the time between checkpoints that loses the least: √(2·Save·MTBF) (Young 1974),
// or Daly's estimate of higher order (2006) if saving takes more than a fiftieth of the MTBF. It is at
// least Write, because checkpoints are written one after the other.
func (f Failures) Interval() float64 {
	interval := math.Sqrt(2 * f.Save * f.MTBF)
	switch {
	case f.Save >= 2*f.MTBF:
		interval = f.MTBF
	case f.Save > f.MTBF/50:
		ratio := f.Save / (2 * f.MTBF)
		interval = interval*(1+math.Sqrt(ratio)/3+ratio/9) - f.Save
	}
	return max(interval, f.Write)
}

// Overhead returns the time that saving, repeated work and restarts take, over the time of the
// steps, with a checkpoint every interval seconds. A failure repeats half an interval on average,
// and the time in which the last checkpoint was not yet complete.
func (f Failures) Overhead(interval float64) float64 {
	return f.Save/interval + (interval/2+f.Write+f.Restart)/f.MTBF
}
