package nn

import "octet/backend"

// ScaleColumns is Out = X ⊙ Gain + Residual: Gain has an element for each column. Backend gaudi
// refuses it, as it does every op that embeds backend.Custom.
type ScaleColumns struct {
	backend.Custom
	X        *backend.Tensor `op:"in"`          // [rows, cols]
	Gain     *backend.Tensor `op:"in"`          // F32 [cols]
	Residual *backend.Tensor `op:"in,optional"` // [rows, cols]; nil is 0
	Out      []backend.Cast  `op:"cast"`
}

// Check implements backend.CustomOp.
func (o *ScaleColumns) Check(c *backend.Check) {
	rows, cols := o.X.Rows(), o.X.Cols()
	c.Plain("X", o.X)
	c.Vector("Gain", o.Gain, cols)
	if o.Residual != nil {
		c.Plain("Residual", o.Residual)
		c.Matrix("Residual", o.Residual, rows, cols)
	}
	c.Casts("Out", o.Out, rows, cols)
}

// Reference implements backend.CustomOp.
func (o *ScaleColumns) Reference(a backend.Arguments) {
	y, gain := a.Read(o.X), a.Read(o.Gain)
	for i := range y {
		y[i] *= gain[i%len(gain)]
	}
	if o.Residual != nil {
		for i, r := range a.Read(o.Residual) {
			y[i] += r
		}
	}
	a.Cast(o.Out, y, o.X.Cols())
}

// Loop implements backend.Looped.
func (o *ScaleColumns) Loop() backend.Loop {
	l := backend.Loop{In: []*backend.Tensor{o.X, o.Gain}, Out: [][]backend.Cast{o.Out}}
	if o.Residual == nil {
		l.F = func(out, in [][]float32) {
			for i, x := range in[0] {
				out[0][i] = x * in[1][i]
			}
		}
		l.CUDA = `__device__ void f(float *out, const float *in) { out[0] = in[0] * in[1]; }`
		return l
	}
	l.In = append(l.In, o.Residual)
	l.F = func(out, in [][]float32) {
		for i, x := range in[0] {
			out[0][i] = float32(x*in[1][i]) + in[2][i]
		}
	}
	l.CUDA = `__device__ void f(float *out, const float *in) { out[0] = __fmul_rn(in[0], in[1]) + in[2]; }`
	return l
}
