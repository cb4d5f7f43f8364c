package adam

import (
	"errors"
	"math"
	"math/rand/v2"
	"slices"

	"octet/recipe"
)

// Drop is what became of a second moment when most gradients fell.
type Drop struct {
	Before, After           float64 // median of v over its true value, at the two ends
	Zeros                   float64 // share of elements whose v is 0 at the end, and should not be
	ErrorBefore, ErrorAfter float64 // of the update, relative to its true length
}

// MeasureDrop feeds a tensor of n elements gradients of normal noise whose
// spread differs by 10³ from element to element. Half way, all but the largest
// eighth fall tenfold. The first moment stays in FP32, so that the errors are the second's.
//
// The run is forty times as long as v's memory: v has its value at both ends.
func MeasureDrop(s recipe.Optimizer, beta2 float64, n int) (d Drop, err error) {
	r := Rule{LR: 1, Beta1: 0.9, Beta2: beta2, Eps: 1e-12}
	o, err := New(s, r, make([]float32, n))
	if err != nil {
		return d, err
	}
	defer func() { err = errors.Join(err, o.Close()) }()
	truth := Truth{Rule: r}
	rng := rand.New(rand.NewPCG(1, 2))
	rank := rng.Perm(n) // so that every block has all sizes
	spread := spreads(rank, 3)
	grad, zero := make([]float32, n), make([]float32, n)
	steps := int(20 / (1 - beta2))
	for step := range 2 * steps {
		for i := range grad {
			grad[i] = float32(spread[i] * rng.NormFloat64())
			if step >= steps && rank[i] >= n/8 {
				grad[i] /= 10
			}
		}
		last := step == steps-1 || step == 2*steps-1
		if last { // the step shows in the weights, if they are 0
			if err := o.SetWeights(zero); err != nil {
				return d, err
			}
		}
		if err := o.Step(grad); err != nil {
			return d, err
		}
		want := truth.Step(grad)
		if !last {
			continue
		}
		v, err := o.V()
		if err != nil {
			return d, err
		}
		p, err := o.Weights()
		if err != nil {
			return d, err
		}
		ratio, bad, norm, zeros := make([]float64, n), 0.0, 0.0, 0
		for i := range v {
			ratio[i] = v[i] / truth.V[i]
			bad += (-p[i] - want[i]) * (-p[i] - want[i])
			norm += want[i] * want[i]
			if v[i] == 0 {
				zeros++
			}
		}
		slices.Sort(ratio)
		d.Before, d.ErrorBefore = d.After, d.ErrorAfter
		d.After, d.ErrorAfter = ratio[n/2], math.Sqrt(bad/norm)
		d.Zeros = float64(zeros) / float64(n)
	}
	return d, nil
}
