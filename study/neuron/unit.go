package main

import (
	"math"
	"slices"
)

// shape describes f(x) = Σ_j w3_j · (w1_j·x) · σ(w2_j·x), the sum of one or more neurons.
type shape struct {
	neurons, dim int
	gated        bool // σ is silu, as in SwiGLU; otherwise the identity, a bilinear unit
	trainW3      bool // otherwise w3 is 1
}

// The weights are one slice: w1_j and w2_j of each neuron, then w3.

func (s shape) size() int { return s.neurons * (2*s.dim + 1) }

func (s shape) w1(p []float64, j int) []float64 { return p[2*j*s.dim:][:s.dim] }

func (s shape) w2(p []float64, j int) []float64 { return p[(2*j+1)*s.dim:][:s.dim] }

// rows returns w1 and w2 of all neurons, the weights that decay.
func (s shape) rows(p []float64) []float64 { return p[:2*s.neurons*s.dim] }

func (s shape) w3(p []float64) []float64 { return p[2*s.neurons*s.dim:] }

// sigma returns σ and its derivative.
func (s shape) sigma(z float64) (value, slope float64) {
	if !s.gated {
		return z, 1
	}
	g := sigmoid(z)
	return z * g, g * (1 + z*(1-g))
}

func sigmoid(z float64) float64 { return 1 / (1 + math.Exp(-z)) }

// hidden returns a_j = (w1_j·x) · σ(w2_j·x), the activation before w3.
func (s shape) hidden(p, x []float64, j int) float64 {
	value, _ := s.sigma(dot(s.w2(p, j), x))
	return dot(s.w1(p, j), x) * value
}

func (s shape) output(p, x []float64) (f float64) {
	for j, w := range s.w3(p) {
		f += w * s.hidden(p, x, j)
	}
	return f
}

// lossAndGrad returns the loss of these samples, the mean of ½(f−y)² plus ½·l2·(|w1|²+|w2|²)
// of all neurons, and stores its gradient in grad.
func (s shape) lossAndGrad(grad, p []float64, d data, samples []int, l2 float64) (loss float64) {
	clear(grad)
	up, gate, slope := make([]float64, s.neurons), make([]float64, s.neurons), make([]float64, s.neurons)
	w3, gradW3 := s.w3(p), s.w3(grad)
	share := 1 / float64(len(samples))
	for _, n := range samples {
		x, f := d.row(n), 0.0
		for j := range s.neurons {
			up[j] = dot(s.w1(p, j), x)
			gate[j], slope[j] = s.sigma(dot(s.w2(p, j), x))
			f += w3[j] * up[j] * gate[j]
		}
		r := f - d.y[n]
		loss += share * r * r / 2
		for j := range s.neurons {
			add(s.w1(grad, j), x, share*r*w3[j]*gate[j])
			add(s.w2(grad, j), x, share*r*w3[j]*up[j]*slope[j])
			if s.trainW3 {
				gradW3[j] += share * r * up[j] * gate[j]
			}
		}
	}
	for i, w := range s.rows(p) {
		loss += l2 * w * w / 2
		grad[i] += l2 * w
	}
	return loss
}

func dot(a, b []float64) (sum float64) {
	for i, v := range a {
		sum += v * b[i]
	}
	return sum
}

// add adds k·x to sum.
func add(sum, x []float64, k float64) {
	for i, v := range x {
		sum[i] += k * v
	}
}

func norm(x []float64) float64 { return math.Sqrt(dot(x, x)) }

// outcome is a trained unit.
type outcome struct {
	run
	data  data
	p     []float64
	rootV float64 // mean of √v of w1 and w2, Adam's second moment, after the last step
}

// cos returns the cosine between w1 and w2 of neuron j.
func (o *outcome) cos(j int) float64 {
	w1, w2 := o.w1(o.p, j), o.w2(o.p, j)
	return dot(w1, w2) / (norm(w1) * norm(w2))
}

// amax returns the largest |a_j| over the samples.
func (o *outcome) amax(j int) (top float64) {
	for n := range o.data.y {
		top = max(top, math.Abs(o.hidden(o.p, o.data.row(n), j)))
	}
	return top
}

// learned reports whether the unit explains a tenth of the targets' mean square or more. A unit
// that starts where the teacher's gate is closed may end in a stationary point near 0, whose angle
// means little.
func (o *outcome) learned() bool {
	var wrong, all float64
	for n, y := range o.data.y {
		r := o.output(o.p, o.data.row(n)) - y
		wrong += r * r
		all += y * y
	}
	return wrong <= 0.9*all
}

// top returns the neuron with the largest contribution |w3_j·a_j| to one output.
func (o *outcome) top() int {
	size := make([]float64, o.neurons)
	for j := range size {
		size[j] = math.Abs(o.w3(o.p)[j]) * o.amax(j)
	}
	return slices.Index(size, slices.Max(size))
}
