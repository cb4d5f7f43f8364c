package emu

import (
	"math"

	"octet/backend"
)

// Ungated activations. The exact GELU is computed in float64 and with the
// complement of erf, which keeps the small values of the negative side.

func (b *binder) activation(o *backend.Activation) func() {
	x := b.rows(o.X)
	e := b.emitter(o.Out, x.cols)
	buffers := b.pieceBuffers(x.cols)
	apply := gelu
	if o.Kind == backend.ReLU {
		apply = relu
	}
	run := b.pieces(o.X.Rows(), x.cols, func(worker, row, col, n int) {
		y := buffers[worker][:n]
		apply(y, x.piece(y, row, col, n))
		e.store(worker, row, col, y)
	})
	return storing(run, e)
}

func (b *binder) activationGrad(o *backend.ActivationGrad) func() {
	x, dout := b.rows(o.X), b.rows(o.DOut)
	e := b.emitter(o.DX, x.cols)
	inputs, gradients := b.pieceBuffers(x.cols), b.pieceBuffers(x.cols)
	apply := geluGradient
	if o.Kind == backend.ReLU {
		apply = reluGradient
	}
	run := b.pieces(o.X.Rows(), x.cols, func(worker, row, col, n int) {
		dx := gradients[worker][:n]
		apply(dx, x.piece(inputs[worker], row, col, n), dout.piece(dx, row, col, n))
		e.store(worker, row, col, dx)
	})
	return storing(run, e)
}

// relu keeps NaN, as every comparison with it is false.
func relu(dst, x []float32) {
	for i, v := range x {
		if v < 0 {
			v = 0
		}
		dst[i] = v
	}
}

// reluGradient passes dy where x is above 0 (or NaN), and 0 elsewhere.
func reluGradient(dx, x, dy []float32) {
	for i, v := range x {
		dx[i] = dy[i]
		if v <= 0 {
			dx[i] = 0
		}
	}
}

func gelu(dst, x []float32) {
	for i, v := range x {
		cdf, _ := normal(float64(v))
		dst[i] = v * float32(cdf)
	}
}

// geluGradient is dy · (Φ(x) + x·φ(x)).
func geluGradient(dx, x, dy []float32) {
	for i, v := range x {
		cdf, density := normal(float64(v))
		dx[i] = dy[i] * float32(cdf+float64(v)*density)
	}
}

// normal is the distribution function Φ and the density φ of the normal
// distribution, within a relative 4e-9 where they are float32 numbers.
//
// Φ(−x) is half of erfc(z), z = x/√2, and erfc(z) = e^(−z²)·t·p(t) with
// t = 1/(1 + 0.4·z): p hardly varies, and the polynomial of degree 10 here is
// its Chebyshev interpolation over 0 ≤ z ≤ 10. So one exponential serves both.
func normal(x float64) (cdf, density float64) {
	e := math.Exp(-0.5 * x * x)
	t := 1 / (1 + 0.4/math.Sqrt2*math.Abs(x))
	p := -0.015730949435437025
	p = p*t + 0.061826405008530041
	p = p*t - 0.034846026476241456
	p = p*t - 0.15711067440626503
	p = p*t + 0.22812908841192856
	p = p*t - 0.086185987316657692
	p = p*t + 0.18946927220301979
	p = p*t + 0.15247153727591413
	p = p*t + 0.2109385251468916
	p = p*t + 0.22534907350001721
	p = p*t + 0.22568973515720568
	cdf = 0.5 * e * t * p
	if x > 0 {
		cdf = 1 - cdf
	}
	return cdf, e * (1 / (math.SqrtPi * math.Sqrt2))
}
