package adam

import (
	"errors"
	"math"
	"math/rand/v2"
	"slices"

	"octet/recipe"
)

// Drop holds the errors of the second moment before and after most gradients fall tenfold.
type Drop struct {
	Before, After           float64 // median of v over its exact value, at the end of each half
	Zeros                   float64 // share of elements whose v has underflowed to 0 at the end
	ErrorBefore, ErrorAfter float64 // relative error of the update, in the Euclidean norm
}

// MeasureDrop updates n elements with normally distributed gradients whose standard
// deviations differ by up to 10³. Halfway, all but the largest eighth fall tenfold. With
// the first moment in FP32, the errors are those of the second.
//
// Each half takes 20/(1−β2) steps, so that v converges.
func MeasureDrop(s recipe.Optimizer, beta2 float64, n int) (d Drop, err error) {
	r := Rule{LR: 1, Beta1: 0.9, Beta2: beta2, Eps: 1e-12}
	o, err := New(s, r, make([]float32, n))
	if err != nil {
		return d, err
	}
	defer func() { err = errors.Join(err, o.Close()) }()
	reference := Reference{Rule: r}
	rng := rand.New(rand.NewPCG(1, 2))
	rank := rng.Perm(n) // every block gets gradients of all sizes
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
		if last { // with weights of 0 the update can be read from them
			if err := o.SetWeights(zero); err != nil {
				return d, err
			}
		}
		if err := o.Step(grad); err != nil {
			return d, err
		}
		want := reference.Step(grad)
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
			ratio[i] = v[i] / reference.V[i]
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
