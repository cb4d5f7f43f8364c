package cuda

import "octet/backend"

// transpose writes X [rows, cols] to Out [cols, rows], codes unchanged. Lowering adds it after
// an all-gather whose result a GEMM reads transposed.
type transpose struct {
	backend.Custom
	X   *backend.Tensor `op:"in"`
	Out *backend.Tensor `op:"out"`
}

// Check implements backend.CustomOp.
func (o *transpose) Check(c *backend.Check) {
	c.Matrix("Out", o.Out, o.X.Cols(), o.X.Rows())
	c.That(o.X.DType == o.Out.DType, "X is %s, Out is %s", o.X, o.Out)
	c.That(o.X.DType.Size() > 0, "X is %s, of which a byte holds two elements", o.X)
}

// Reference implements backend.CustomOp for tensors without scales.
func (o *transpose) Reference(a backend.Arguments) {
	rows, cols := o.X.Rows(), o.X.Cols()
	x, out := a.Read(o.X), make([]float64, rows*cols)
	for i, v := range x {
		out[i%cols*rows+i/cols] = v
	}
	a.Store(o.Out, out)
}

var _ = implement(func(b *binder, o *transpose) ([]call, error) {
	return b.shaped("transpose", o, extent(o.X)...)
}, "X", "Out")
