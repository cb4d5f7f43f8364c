package main

import (
	"math"
	"math/rand/v2"
)

// training says how a unit trains.
type training struct {
	lr     float64
	cosine bool // the learning rate falls to 0 by a cosine; otherwise it is constant
	steps  int
	batch  int     // samples of a step, drawn with replacement; 0: all of them
	l2     float64 // coupled: the gradient of ½·l2·|w|² goes through Adam
	decay  float64 // decoupled, as AdamW: w falls by lr·decay·w in every step
}

const (
	beta1, beta2 = 0.9, 0.999
	epsilon      = 1e-8
)

// train trains the weights p with Adam. It returns the mean of √v of w1 and w2, where v is the
// second moment with its bias corrected.
func (t training) train(s shape, p []float64, d data, rng *rand.Rand) (rootV float64) {
	grad, m, v := make([]float64, len(p)), make([]float64, len(p)), make([]float64, len(p))
	samples := make([]int, len(d.y))
	for i := range samples {
		samples[i] = i
	}
	if t.batch > 0 {
		samples = samples[:t.batch]
	}
	decaying := len(s.rows(p))
	for step := range t.steps {
		if t.batch > 0 {
			for i := range samples {
				samples[i] = rng.IntN(len(d.y))
			}
		}
		s.lossAndGrad(grad, p, d, samples, t.l2)
		lr := t.lr
		if t.cosine {
			lr *= (1 + math.Cos(math.Pi*float64(step)/float64(t.steps))) / 2
		}
		c1, c2 := 1-math.Pow(beta1, float64(step+1)), 1-math.Pow(beta2, float64(step+1))
		rootV = 0
		for i, g := range grad {
			m[i] = beta1*m[i] + (1-beta1)*g
			v[i] = beta2*v[i] + (1-beta2)*g*g
			root := math.Sqrt(v[i] / c2)
			if i < decaying {
				p[i] -= lr * t.decay * p[i]
				rootV += root / float64(decaying)
			}
			p[i] -= lr * m[i] / c1 / (root + epsilon)
		}
	}
	return rootV
}
