package backend

import "octet/fp8"

// Accum is how a matrix unit keeps its partial sums.
type Accum uint8

const (
	// Promoted adds partial sums up in FP32 (Hopper: at intervals). For dgrad
	// and wgrad, and wherever no device model says otherwise.
	Promoted Accum = iota
	// Fast stays in the matrix unit's own accumulator, 13 fraction bits on
	// Hopper. For fprop.
	Fast
)

func (a Accum) String() string { return [...]string{"promoted", "fast"}[a] }

// MatMul is Out = op(A)·op(B), with A m×k and B k×n after the optional
// transposes and op accumulating in FP32:
//
//	v = acc · A.Scale · B.Scale
//	v = v · RowScale[i] · ColScale[j]     where given
//	v = v + Residual[i,j]                 where given, or the old Out if Accumulate
//	Amax = max(Amax, |v|)                 where given
//	Out = round(v · OutScale)
//
// The source of the order is cuBLASLt's epilogue: amax before the output scale.
type MatMul struct {
	A        *Tensor `op:"in"`
	B        *Tensor `op:"in"`
	RowScale *Tensor `op:"in,optional"` // F32 [m]
	ColScale *Tensor `op:"in,optional"` // F32 [n]
	Residual *Tensor `op:"in,optional"` // [m, n], F32 or BF16
	Out      *Tensor `op:"out,inout=Accumulate"`
	OutScale *Tensor `op:"in,optional"`    // F32 [1], FP8 Out only
	Amax     *Tensor `op:"inout,optional"` // F32 [1], FP8 Out only

	TransA, TransB bool
	Accumulate     bool // Out += …, BF16 or F32 Out only
	Accum          Accum
}

// Dims returns m, n and k.
func (o *MatMul) Dims() (m, n, k int) {
	m, k = o.A.Rows(), o.A.Cols()
	if o.TransA {
		m, k = k, m
	}
	n = o.B.Cols()
	if o.TransB {
		n = o.B.Rows()
	}
	return m, n, k
}

func (o *MatMul) check() error {
	var c checker
	m, n, k := o.Dims()
	kb := o.B.Rows()
	if o.TransB {
		kb = o.B.Cols()
	}
	c.that(k == kb, "K differs: A is %s%s, B is %s%s", o.A, transposed(o.TransA), o.B, transposed(o.TransB))
	for _, f := range []field{{"A", o.A}, {"B", o.B}} {
		c.dtype(f.name, f.t, fp8.F32, fp8.BF16, fp8.E4M3, fp8.E4M3IEEE, fp8.E5M2)
	}
	c.that(o.A.DType.IsFP8() == o.B.DType.IsFP8(), "A is %s and B is %s: both must be FP8 or neither", o.A, o.B)
	c.that(o.A.DType.IsFP8() || o.A.DType == o.B.DType, "A is %s and B is %s: the formats must be equal", o.A, o.B)
	c.matrix("Out", o.Out, m, n)
	c.dtype("Out", o.Out, fp8.F32, fp8.BF16, fp8.E4M3, fp8.E4M3IEEE, fp8.E5M2)
	if o.RowScale != nil {
		c.vector("RowScale", o.RowScale, m)
	}
	if o.ColScale != nil {
		c.vector("ColScale", o.ColScale, n)
	}
	if o.Residual != nil {
		c.matrix("Residual", o.Residual, m, n)
		c.plain(field{"Residual", o.Residual})
		c.that(!o.Accumulate, "Residual and Accumulate exclude each other")
	}
	if o.Out.DType.IsFP8() {
		c.that(!o.Accumulate, "an FP8 Out cannot accumulate")
	} else {
		c.that(o.OutScale == nil && o.Amax == nil, "OutScale and Amax belong to an FP8 Out, Out is %s", o.Out)
	}
	if o.OutScale != nil {
		c.scalar("OutScale", o.OutScale)
	}
	if o.Amax != nil {
		c.scalar("Amax", o.Amax)
	}
	return c.err
}

func transposed(t bool) string {
	if t {
		return " (transposed)"
	}
	return ""
}

func (o *MatMul) flops() int64 {
	m, n, k := o.Dims()
	return 2 * int64(m) * int64(n) * int64(k)
}
