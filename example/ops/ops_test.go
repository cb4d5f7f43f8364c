// Package ops shows how a module of its own adds ops to Octet: SquaredReLU with a loop,
// which backends emu and cuda run, and Median with a reference alone.
package ops

import (
	"slices"

	"octet/backend"
)

// SquaredReLU is Out = max(X, 0)².
type SquaredReLU struct {
	backend.Custom
	X   *backend.Tensor `op:"in"`
	Out []backend.Cast  `op:"cast"`
}

// Check implements backend.CustomOp.
func (o *SquaredReLU) Check(c *backend.Check) {
	c.Plain("X", o.X)
	c.Casts("Out", o.Out, o.X.Rows(), o.X.Cols())
}

// Reference implements backend.CustomOp.
func (o *SquaredReLU) Reference(a backend.Arguments) {
	y := a.Read(o.X)
	for i, x := range y {
		y[i] = max(x, 0) * max(x, 0)
	}
	a.Cast(o.Out, y, o.X.Cols())
}

// Loop implements backend.Looped.
func (o *SquaredReLU) Loop() backend.Loop {
	return backend.Loop{In: []*backend.Tensor{o.X}, Out: [][]backend.Cast{o.Out}, F: func(out, in [][]float32) {
		for i, x := range in[0] {
			x = max(x, 0)
			out[0][i] = x * x
		}
	}, CUDA: `__device__ void f(float *out, const float *in) {
	const float x = fmaxf(in[0], 0.0f);
	out[0] = in[0] == in[0] ? x * x : in[0]; // fmaxf drops a NaN
}`}
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
