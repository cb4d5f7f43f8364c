package backend

import "octet/fp8"

// CastHealth measures what a cast of X to the FP8 tensor Codes lost, as shares
// of the elements. Both are 0 in a healthy cast of activations; gradients in
// E5M2 lose a little to zero. A NaN counts as neither.
//
//	Out[0]  clipped: |x|/scale_inv is above fp8.DType.ClipLimit
//	Out[1]  flushed: x is not 0 and its code is
//	Out[2]  scale_inv, by which the codes are dequantised
type CastHealth struct {
	X     *Tensor `op:"in"`  // what was cast, F32, BF16 or F16, with or without a scale
	Codes *Tensor `op:"in"`  // FP8 of X's shape, one scale for the tensor
	Out   *Tensor `op:"out"` // F32 [3]
}

func (o *CastHealth) check() error {
	var c checker
	c.dtype("X", o.X, fp8.F32, fp8.BF16, fp8.F16)
	c.dtype("Codes", o.Codes, fp8.E4M3, fp8.E4M3IEEE, fp8.E5M2)
	c.matrix("Codes", o.Codes, o.X.Rows(), o.X.Cols())
	c.that(o.Codes.Block == PerTensor, "Codes is %s with blocks of %s, expected one scale", o.Codes, o.Codes.Block)
	c.vector("Out", o.Out, 3)
	return c.err
}

func (o *CastHealth) flops() int64 { return 0 }

// RowCosine compares two matrices row by row: the cosine of the angle between
// the rows and their lengths. Of up_proj and gate_proj, whose rows are the
// channels of a SwiGLU, it shows the alignment that makes outliers (method.md):
//
//	Out[0, i] = a_i·b_i / (|a_i| |b_i|), 0 where a row is 0
//	Out[1, i] = |a_i|
//	Out[2, i] = |b_i|
type RowCosine struct {
	A   *Tensor `op:"in"` // F32, BF16 or F16, with or without a scale
	B   *Tensor `op:"in"`
	Out *Tensor `op:"out"` // F32 [3, rows]
}

func (o *RowCosine) check() error {
	var c checker
	for _, f := range []field{{"A", o.A}, {"B", o.B}} {
		c.dtype(f.name, f.t, fp8.F32, fp8.BF16, fp8.F16)
	}
	c.matrix("B", o.B, o.A.Rows(), o.A.Cols())
	c.that(o.Out.DType == fp8.F32 && o.Out.Rows() == 3 && o.Out.Cols() == o.A.Rows(), "Out is %s, expected fp32[3, %d]", o.Out, o.A.Rows())
	c.unscaled("Out", o.Out)
	return c.err
}

func (o *RowCosine) flops() int64 { return 0 }
