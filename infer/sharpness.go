package infer

import "math"

// sharpnessBox is ε of Sharpness.
const sharpnessBox = 5e-4

// Sharpness returns 100·(max f(y+z) − f(y)) / (1 + f(y)), where y are the logits after the last
// token of a sequence, f is the cross-entropy of the target in nats, and the maximum is over
// the box |z_j| ≤ ε·(|y_j|+1) with ε = 5e-4. This is the sharpness of "To FP8 and Back Again"
// (arXiv 2405.18710), after Keskar et al. (arXiv 1609.04836).
//
// f increases with every logit but the target's, and decreases with that one, so a corner of
// the box has the maximum: z_target is negative, all others are positive. A constant added to
// all logits changes the box, and so the result.
func Sharpness(logits []float32, target int) float64 {
	corner := func(j int, box float64) float64 {
		y := float64(logits[j])
		z := box * (math.Abs(y) + 1)
		if j == target {
			z = -z
		}
		return y + z
	}
	entropy := func(box float64) float64 {
		top, sum := math.Inf(-1), 0.0
		for j := range logits {
			top = max(top, corner(j, box))
		}
		for j := range logits {
			sum += math.Exp(corner(j, box) - top)
		}
		return top + math.Log(sum) - corner(target, box)
	}
	f := entropy(0)
	return 100 * (entropy(sharpnessBox) - f) / (1 + f)
}

type mean struct {
	sum float64
	n   int
}

// addSharpness adds the sharpness of each complete window of the last batch.
func (e *Evaluator) addSharpness(to *mean) error {
	logits, err := e.read(e.last)
	if err != nil {
		return err
	}
	for i := range e.windows.Batch {
		if target := e.next[(i+1)*e.windows.Seq-1]; target >= 0 { // else padding
			to.sum += Sharpness(logits[i*e.last.Cols():][:e.model.Config.Vocab], int(target))
			to.n++
		}
	}
	return nil
}
