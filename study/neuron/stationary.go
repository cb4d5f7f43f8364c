package main

import (
	"math"
	"slices"
)

// matrixA returns the symmetric matrix A of the theorem, [dim, dim], for the first neuron:
//
//	A = Σ λ_n·x_n·x_nᵀ      λ_n = −w3·(f(x_n) − y_n)·s(w2·x_n) / (l2·samples)
//
// s is the sigmoid, σ(z) = z·s(z), or 1 without a gate. Where the gradient of the loss is 0,
// w1 = A·w2, and w2 = A·w1 as far as z·s′(z) is 0, which it is without a gate.
func (o *outcome) matrixA() []float64 {
	a := make([]float64, o.dim*o.dim)
	for n, y := range o.data.y {
		x, s := o.data.row(n), 1.0
		if o.gated {
			s = sigmoid(dot(o.w2(o.p, 0), x))
		}
		lambda := -o.w3(o.p)[0] * (o.output(o.p, x) - y) * s / (o.l2 * float64(len(o.data.y)))
		for i, v := range x {
			add(a[i*o.dim:][:o.dim], x, lambda*v)
		}
	}
	return a
}

// times returns A·w.
func times(a, w []float64) []float64 {
	out := make([]float64, len(w))
	for i := range out {
		out[i] = dot(a[i*len(w):][:len(w)], w)
	}
	return out
}

// apart returns |a − b|/|a|.
func apart(a, b []float64) float64 {
	d := slices.Clone(a)
	add(d, b, -1)
	return norm(d) / norm(a)
}

// stationary is how well the theorem's equations hold for a trained unit.
type stationary struct {
	w1, w2       float64 // |w1 − A·w2|/|w1|, |w2 − A·w1|/|w2|
	plus, minus  float64 // the eigenvalues of A that are nearest to +1 and to −1
	lowest       float64 // the lowest eigenvalue of A
	rayleigh     float64 // |A·w1|²/|w1|², the Rayleigh quotient of A² at w1
	sigmoidPrime float64 // mean of s′(w2·x) over the samples
}

func (o *outcome) stationary() (s stationary) {
	w1, w2, a := o.w1(o.p, 0), o.w2(o.p, 0), o.matrixA()
	aw1 := times(a, w1)
	s.w1, s.w2 = apart(w1, times(a, w2)), apart(w2, aw1)
	s.rayleigh = dot(aw1, aw1) / dot(w1, w1)
	values := eigenvalues(a, o.dim)
	s.lowest, s.plus, s.minus = values[0], nearest(values, 1), nearest(values, -1)
	for n := range o.data.y {
		g := sigmoid(dot(w2, o.data.row(n)))
		s.sigmoidPrime += g * (1 - g) / float64(len(o.data.y))
	}
	return s
}

func nearest(values []float64, to float64) float64 {
	return slices.MinFunc(values, func(a, b float64) int {
		switch d := math.Abs(a-to) - math.Abs(b-to); {
		case d < 0:
			return -1
		case d > 0:
			return 1
		}
		return 0
	})
}

// eigenvalues returns the eigenvalues of a symmetric matrix [n, n] in ascending order, by
// Jacobi's rotations of one pair of rows and columns after another.
func eigenvalues(symmetric []float64, n int) []float64 {
	a := slices.Clone(symmetric)
	for {
		var off, all float64
		for i, v := range a {
			all += v * v
			if i/n != i%n {
				off += v * v
			}
		}
		if !(off > 1e-24*all) { // NaN, too; the error is of the order of off/all
			break
		}
		for i := range n {
			for j := i + 1; j < n; j++ {
				rotate(a, n, i, j)
			}
		}
	}
	values := make([]float64, n)
	for i := range values {
		values[i] = a[i*n+i]
	}
	slices.Sort(values)
	return values
}

// rotate makes a[i,j] and a[j,i] 0 by a rotation of rows and columns i and j.
func rotate(a []float64, n, i, j int) {
	// The smaller of the two angles, at most 45°: with others the rounds may not converge.
	opposite, adjacent := 2*a[i*n+j], a[j*n+j]-a[i*n+i]
	if adjacent < 0 {
		opposite, adjacent = -opposite, -adjacent
	}
	sin, cos := math.Sincos(math.Atan2(opposite, adjacent) / 2)
	for k := range n {
		x, y := a[k*n+i], a[k*n+j]
		a[k*n+i], a[k*n+j] = cos*x-sin*y, sin*x+cos*y
	}
	for k := range n {
		x, y := a[i*n+k], a[j*n+k]
		a[i*n+k], a[j*n+k] = cos*x-sin*y, sin*x+cos*y
	}
}
