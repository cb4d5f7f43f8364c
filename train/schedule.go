package train

import "math"

// decayShare is the fraction of a wsd schedule (warm-up, stable, decay) that
// decays.
const decayShare = 0.2

// LRAt returns the learning rate of the update after done completed steps, where steps
// is the length of the run: done is from 0 to steps-1.
//
// The rate rises linearly over the first Warmup·steps updates, from a positive rate
// to LR. Then it stays (constant), falls to MinLR along half a cosine (cosine), or
// stays and falls linearly to MinLR over the last fifth (wsd). The last update of
// cosine and wsd has MinLR exactly. After the end the rate stays constant.
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

// WarmupSteps returns the number of warm-up updates, where steps is the length of the run.
func (o Optimizer) WarmupSteps(steps int) int { return int(math.Round(o.Warmup * float64(steps))) }

// progress returns (step−from)/(to−from), clamped to [0, 1].
func progress(step, from, to float64) float64 {
	switch {
	case step >= to:
		return 1
	case step <= from:
		return 0
	}
	return (step - from) / (to - from)
}

// between returns MinLR + s·(LR−MinLR). The conversion rounds the product before
// the addition: compilers fuse the two on some processors, and results must not
// depend on that.
func (o Optimizer) between(s float64) float64 {
	if s == 1 {
		return o.LR
	}
	return o.MinLR + float64((o.LR-o.MinLR)*s)
}
