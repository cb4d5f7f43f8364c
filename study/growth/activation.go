package main

import "math"

// activation is one of an MLP: p·g(z) with a gate, where p = w1·x and z = w2·x; g(z) without.
type activation struct {
	name  string
	gated bool
	g     func(z float64) (value, slope float64)
}

func sigmoid(z float64) (value, slope float64) {
	s := 1 / (1 + math.Exp(-z))
	return s, s * (1 - s)
}

func silu(z float64) (value, slope float64) {
	s, ds := sigmoid(z)
	return z * s, s + z*ds
}

func gelu(z float64) (value, slope float64) {
	cdf := math.Erfc(-z/math.Sqrt2) / 2
	return z * cdf, cdf + z*math.Exp(-z*z/2)/math.Sqrt(2*math.Pi)
}

func relu(z float64) (value, slope float64) {
	if z <= 0 {
		return 0, 0
	}
	return z, 1
}

func squaredReLU(z float64) (value, slope float64) {
	r, _ := relu(z)
	return r * r, 2 * r
}

var activations = []activation{
	{"SwiGLU", true, silu},
	{"GeGLU", true, gelu},
	{"ReGLU", true, relu},
	{"GLU (sigmoid)", true, sigmoid},
	{"SiLU", false, silu},
	{"GELU", false, gelu},
	{"ReLU", false, relu},
	{"ReLU²", false, squaredReLU},
}

// rows are two rows of length 1 and an input of length 1 that excites both as much as their
// angle allows: p = w1·x and z = w2·x.
type rows struct {
	name string
	p, z float64
}

// With a cosine of 0 the input is (w1+w2)/√2. Anti-aligned rows have opposite signs on every
// input; this one opens the gate.
var angles = []rows{
	{"aligned", 1, 1},
	{"anti-aligned", -1, 1},
	{"cosine 0", math.Sqrt2 / 2, math.Sqrt2 / 2},
}

// at returns f(c·x).
func (a activation) at(r rows, c float64) float64 {
	value, _ := a.g(c * r.z)
	if a.gated {
		value *= c * r.p
	}
	return value
}

// exponent returns d ln|f(c·x)| / d ln c, the exponent of the power of c that f grows as at c.
func (a activation) exponent(r rows, c float64) float64 {
	value, slope := a.g(c * r.z)
	e := c * r.z * slope / value
	if a.gated {
		e++
	}
	return e
}
