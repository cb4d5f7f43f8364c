package cost

import (
	"fmt"
	"math"
)

// Failures are the interruptions of a run: any device that fails stops all, and the run resumes from
// the last complete checkpoint. Times are in seconds.
type Failures struct {
	MTBF    float64 // mean time between failures of the whole machine
	Save    float64 // time for which a checkpoint stops the steps
	Write   float64 // time from then until the checkpoint is complete, while steps run
	Restart float64 // time from a failure to the first step after it
}

// Interval returns the time of steps between checkpoints that loses the least: √(2·Save·MTBF) (Young
// 1974), or Daly's estimate of higher order (2006) if saving takes more than a fiftieth of the MTBF.
// It is at least Write, because checkpoints are written one after the other.
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

// Slowdown returns the mean time of a run over that of its steps, with a checkpoint after every
// interval seconds of steps, if failures are a Poisson process.
//
// With τ the interval and Save, a checkpoint is complete τ after the one before unless the machine
// fails. After a failure, which can also strike a restart, the next one is complete after Restart, τ
// and Write. The mean time for one interval is therefore
//
//	MTBF · (1 − exp(−τ/MTBF)) · exp((Restart + τ + Write)/MTBF)
//
// which is Daly's (2006) if Write is 0.
func (f Failures) Slowdown(interval float64) float64 {
	period := interval + f.Save
	if period == 0 { // checkpoints cost nothing
		return math.Exp(f.Restart / f.MTBF)
	}
	return -f.MTBF / interval * math.Expm1(-period/f.MTBF) * math.Exp((f.Restart+period+f.Write)/f.MTBF)
}

// maxSlowdown is the largest slowdown that Forecast accepts. A run with a larger one hardly
// progresses, and its time depends on more than means.
const maxSlowdown = 10

// slowdown returns the slowdown of a run; the error says which time causes one beyond maxSlowdown.
func (f Failures) slowdown(interval float64) (float64, error) {
	x := f.Slowdown(interval)
	if x <= maxSlowdown {
		return x, nil
	}
	return x, fmt.Errorf("the run hardly progresses: a device fails every %.3g s, and a checkpoint is complete after %.3g s of steps, %.3g s of copies and %.3g s of writing, a restart after %.3g s: raise checkpoint_rate or mtbf",
		f.MTBF, interval, f.Save, f.Write, f.Restart)
}
