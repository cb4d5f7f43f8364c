package main

import "octet/backend"

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
	const float x = in[0] <= 0.0f ? 0.0f : in[0]; // unlike fmaxf, keeps a NaN
	out[0] = x * x;
}`}
}

// SquaredReLUGrad is DX = 2·DOut·max(X, 0).
type SquaredReLUGrad struct {
	backend.Custom
	DOut *backend.Tensor `op:"in"`
	X    *backend.Tensor `op:"in"`
	DX   []backend.Cast  `op:"cast"`
}

// Check implements backend.CustomOp.
func (o *SquaredReLUGrad) Check(c *backend.Check) {
	c.Plain("X", o.X)
	c.Plain("DOut", o.DOut)
	c.Matrix("DOut", o.DOut, o.X.Rows(), o.X.Cols())
	c.Casts("DX", o.DX, o.X.Rows(), o.X.Cols())
}

// Reference implements backend.CustomOp.
func (o *SquaredReLUGrad) Reference(a backend.Arguments) {
	dx, x := a.Read(o.DOut), a.Read(o.X)
	for i := range dx {
		dx[i] *= 2 * max(x[i], 0)
	}
	a.Cast(o.DX, dx, o.X.Cols())
}

// Loop implements backend.Looped.
func (o *SquaredReLUGrad) Loop() backend.Loop {
	return backend.Loop{In: []*backend.Tensor{o.DOut, o.X}, Out: [][]backend.Cast{o.DX}, F: func(out, in [][]float32) {
		for i, x := range in[1] {
			out[0][i] = in[0][i] * (2 * max(x, 0))
		}
	}, CUDA: `__device__ void f(float *dx, const float *in) {
	dx[0] = in[0] * (2.0f * (in[1] <= 0.0f ? 0.0f : in[1]));
}`}
}
