package train

import "math"

// decayShare is the part of a wsd schedule (warm-up, stable, decay) in which
// the rate falls.
const decayShare = 0.2

// LRAt is the learning rate of the update that follows after done completed
// steps, of steps in all: done runs from 0 to steps-1.
//
// The rate rises linearly over the first Warmup·steps updates, so that the
// first one already moves and the last of them has LR. Then it stays
// (constant), falls to MinLR along half a cosine (cosine), or stays and falls
// linearly within the last fifth (wsd). The last update has MinLR exactly.
// Beyond the end the rate stays what it was.
func (o Optimizer) LRAt(done, steps int) float64 {
	step, last := float64(max(done, 0))+1, float64(steps)
	warm := float64(o.WarmupSteps(steps))
	if step <= warm {
		return o.LR * (step / warm)
	}
	switch o.Schedule {
	case "cosine":
		return o.between(0.5 + 0.5*math.Cos(math.Pi*progress(step, warm, last)))
	case "wsd":
		stable := max(warm, last-math.Round(decayShare*last))
		return o.between(1 - progress(step, stable, last))
	}
	return o.LR
}

// WarmupSteps is the number of updates, of steps in all, in which the rate rises.
func (o Optimizer) WarmupSteps(steps int) int { return int(math.Round(o.Warmup * float64(steps))) }

// progress is the share of the way from one step to another, within [0, 1].
func progress(step, from, to float64) float64 {
	switch {
	case step >= to:
		return 1
	case step <= from:
		return 0
	}
	return (step - from) / (to - from)
}

// between is the rate at share s of the way from MinLR to LR. The product is
// rounded before it is added: compilers may fuse the two on some processors,
// and a run must not depend on that.
func (o Optimizer) between(s float64) float64 {
	if s == 1 {
		return o.LR
	}
	return o.MinLR + float64((o.LR-o.MinLR)*s)
}
