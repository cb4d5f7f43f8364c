package adam

import (
	"errors"
	"math"
	"math/rand/v2"

	"octet/recipe"
)

// Spread holds the size of updates of a tensor whose gradients differ in size.
type Spread struct {
	Largest float64 // largest update in units of the learning rate; at most 1.2 in exact arithmetic
	Beyond  float64 // fraction of updates larger than 10
}

// MeasureSpread updates a tensor with normally distributed gradients whose standard
// deviations differ by up to 10^decades and measures every update. In exact arithmetic
// none is larger than (1−β1)/√((1−β2)(1−β1²/β2)) = 1.2.
func MeasureSpread(s recipe.Optimizer, decades float64) (d Spread, err error) {
	const n, steps = 4096, 200
	r := Rule{LR: 1, Beta1: 0.9, Beta2: 0.95, Eps: 1e-12}
	zero := make([]float32, n)
	o, err := New(s, r, zero)
	if err != nil {
		return d, err
	}
	defer func() { err = errors.Join(err, o.Close()) }()
	rng := rand.New(rand.NewPCG(3, 4))
	spread := spreads(rng.Perm(n), decades)
	grad := make([]float32, n)
	for range steps {
		for i := range grad {
			grad[i] = float32(spread[i] * rng.NormFloat64())
		}
		if err := o.SetWeights(zero); err != nil { // with weights of 0 the update can be read from them
			return d, err
		}
		if err := o.Step(grad); err != nil {
			return d, err
		}
		p, err := o.Weights()
		if err != nil {
			return d, err
		}
		for _, x := range p {
			d.Largest = max(d.Largest, math.Abs(x))
			if math.Abs(x) > 10 {
				d.Beyond += 1.0 / (n * steps)
			}
		}
	}
	return d, nil
}

// spreads returns a standard deviation per element, 10^(−decades·rank/n).
func spreads(rank []int, decades float64) []float64 {
	x := make([]float64, len(rank))
	for i, r := range rank {
		x[i] = math.Pow(10, -decades*float64(r)/float64(len(rank)))
	}
	return x
}
