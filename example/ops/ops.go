// Package ops shows how a module of its own adds ops to Octet: Product with a loop, which
// backends emu and cuda run, and Median with a reference alone.
package ops

import (
	"slices"

	"octet/backend"
)

// Product is Out = A ⊙ B.
type Product struct {
	backend.Custom
	A   *backend.Tensor `op:"in"`
	B   *backend.Tensor `op:"in"`
	Out []backend.Cast  `op:"cast"`
}

// Check implements backend.CustomOp.
func (o *Product) Check(c *backend.Check) {
	c.Plain("A", o.A)
	c.Plain("B", o.B)
	c.Matrix("B", o.B, o.A.Rows(), o.A.Cols())
	c.Casts("Out", o.Out, o.A.Rows(), o.A.Cols())
}

// Reference implements backend.CustomOp.
func (o *Product) Reference(a backend.Arguments) {
	y, b := a.Read(o.A), a.Read(o.B)
	for i := range y {
		y[i] *= b[i]
	}
	a.Cast(o.Out, y, o.A.Cols())
}

// Loop implements backend.Looped.
func (o *Product) Loop() backend.Loop {
	return backend.Loop{In: []*backend.Tensor{o.A, o.B}, Out: [][]backend.Cast{o.Out}, F: func(out, in [][]float32) {
		for i, x := range in[0] {
			out[0][i] = x * in[1][i]
		}
	}, CUDA: `__device__ void f(float *out, const float *in) { out[0] = in[0] * in[1]; }`}
}

// Median is Out[r] = the median of row r of X, the lower one of two.
type Median struct {
	backend.Custom
	X   *backend.Tensor `op:"in"`
	Out *backend.Tensor `op:"out"` // [rows, 1]
}

// Check implements backend.CustomOp.
func (o *Median) Check(c *backend.Check) {
	c.Plain("X", o.X)
	c.Plain("Out", o.Out)
	c.Matrix("Out", o.Out, o.X.Rows(), 1)
}

// Reference implements backend.CustomOp.
func (o *Median) Reference(a backend.Arguments) {
	var medians []float64
	for row := range slices.Chunk(a.Read(o.X), o.X.Cols()) {
		slices.Sort(row)
		medians = append(medians, row[(len(row)-1)/2])
	}
	a.Store(o.Out, medians)
}
