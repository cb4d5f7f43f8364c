package main

import (
	"math"
	"math/rand/v2"
)

// data is a set of samples: inputs [len(y), dim] and targets.
type data struct {
	dim  int
	x, y []float64
}

func (d data) row(n int) []float64 { return d.x[n*d.dim:][:d.dim] }

// target is what a unit learns: y of p = v1·x, q = v2·x and noise, all of variance 1, where
// the unit vectors v1 and v2 have an angle.
type target struct {
	name  string
	angle float64 // degrees
	y     func(p, q, noise float64) float64
}

// bilinearTeacher is a bilinear unit whose rows have an angle.
func bilinearTeacher(size, angle float64) target {
	return target{"bilinear teacher", angle, func(p, q, _ float64) float64 { return size * p * q }}
}

// gatedTeacher is a unit with a gate of ReLU whose rows have an angle.
func gatedTeacher(size, angle float64) target {
	return target{"gated teacher", angle, func(p, q, _ float64) float64 { return size * q * max(p, 0) }}
}

// Targets without a second direction.
var (
	power = target{name: "20·relu(p)^1.5", y: func(p, _, _ float64) float64 { return 20 * math.Pow(max(p, 0), 1.5) }}
	wave  = target{name: "20·sin 2p", y: func(p, _, _ float64) float64 { return 20 * math.Sin(2*p) }}
	noise = target{name: "20·noise", y: func(_, _, noise float64) float64 { return 20 * noise }}
)

// sample draws Gaussian inputs, two directions with the target's angle, and targets.
func (t target) sample(dim, samples int, rng *rand.Rand) data {
	d := data{dim: dim, x: normal(dim*samples, 1, rng), y: make([]float64, samples)}
	v1, v2 := normal(dim, 1, rng), normal(dim, 1, rng)
	scale(v1, 1/norm(v1))
	add(v2, v1, -dot(v1, v2))
	sin, cos := math.Sincos(t.angle * math.Pi / 180)
	scale(v2, sin/norm(v2))
	add(v2, v1, cos)
	for n := range d.y {
		d.y[n] = t.y(dot(v1, d.row(n)), dot(v2, d.row(n)), rng.NormFloat64())
	}
	return d
}

func normal(n int, std float64, rng *rand.Rand) []float64 {
	x := make([]float64, n)
	for i := range x {
		x[i] = std * rng.NormFloat64()
	}
	return x
}

func scale(x []float64, k float64) {
	for i := range x {
		x[i] *= k
	}
}

// teacherSize is s of the teachers, except where an experiment varies it.
const teacherSize = 20

// closedForm returns the cosine between w1 and w2 at the minimum of the loss with an infinite
// number of samples, for a teacher of teacherSize whose rows have this angle in degrees.
//
// A bilinear unit depends on the symmetric part of w1·w2ᵀ alone. Its two eigenvalues are
// ½|w1||w2|(cos ± 1), those of the teacher ½·teacherSize·(cos(angle) ± 1). At fixed |w1||w2| the
// penalty ½μ(|w1|²+|w2|²) is least for |w1| = |w2|, where it is μ times the sum of the
// eigenvalues' magnitudes. So it moves both eigenvalues towards 0 by the same amount, μ/2,
// and where the smaller becomes 0, the rows are parallel. With a gate, half of the inputs
// pass, and the penalty counts twice (k = 2). That is an approximation: SwiGLU aligns before the
// threshold. For k = 1 the form is exact.
func closedForm(angle, mu float64, gated bool) float64 {
	c := math.Cos(angle * math.Pi / 180)
	if mu >= threshold(angle, gated) {
		return math.Copysign(1, c)
	}
	return teacherSize * c / (teacherSize - passed(gated)*mu)
}

// threshold returns the least μ at which the rows are parallel.
func threshold(angle float64, gated bool) float64 {
	return teacherSize * (1 - math.Abs(math.Cos(angle*math.Pi/180))) / passed(gated)
}

// passed returns k of the closed form.
func passed(gated bool) float64 {
	if gated {
		return 2
	}
	return 1
}
