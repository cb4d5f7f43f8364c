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
//
// # Scales by blocks
//
// A and B may have scales by block (Tensor.Block), FP32 or E8M0. The scale
// tensor of an operand is row-major, without gaps, of the shape that
// ScaleShape gives for the operand as it is stored, transposed or not: a B
// stored transposed as [n, k] with Block1x128 has scales [n, k/128], rounded
// up. op(A)'s factor of row i and op(B)'s of column j may change along k, where
// the smaller of the two blocks must divide the larger. k is cut into the runs
// inside which neither does, the last one perhaps shorter, and
//
//	part = +0; part = part + A[i,l]·B[l,j]   for l in the run, over the codes
//	v = part·(sA·sB)                         for the first run
//	v = v + part·(sA·sB)                     for each that follows
//
// ascending, where sums over codes are op accumulation and every other
// operation is FP32, rounded to nearest: the product of the factors, its
// product with part, the addition. That is DeepSeek-V3's promotion every 128
// elements (arXiv 2412.19437, 3.3.2) with the factors multiplied first, as
// DeepGEMM does, and, E8M0 factors being powers of two, MXFP8 (OCP
// Microscaling 1.0) without rounding but in the sums. Factors that do not
// change along k, one per token and one per output channel, make one run. The
// factor of an operand without a scale is 1.
//
// The matrix unit of a device model may take E8M0 factors of blocks of 32 in both
// operands itself: emu:b200 multiplies them into the products of its sums, exactly
// and before they are aligned (backend/arith, Sum.MX), and so has one run.
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
	c.that(o.Accum <= Fast, "unknown accumulation %d", uint8(o.Accum))
	c.blocks(o)
	c.epilogue(o.Epilogue(nil), m, n)
	return c.err
}

// blocks checks the scales by block of a product.
func (c *checker) blocks(o *MatMul) {
	for _, f := range []field{{"A", o.A}, {"B", o.B}} {
		if f.t.Block != PerTensor {
			c.that(f.t.Block.Rows >= 0 && f.t.Block.Cols >= 0, "%s is %s with blocks of %s, expected positive numbers", f.name, f.t, f.t.Block)
			c.that(f.t.Scale != nil, "%s is %s with blocks of %s but no scale", f.name, f.t, f.t.Block)
			c.that(f.t.Scale == nil || f.t.Scale.Contiguous(), "the scale of %s, %s, has gaps between its rows: make it a tensor of its own", f.name, f.t.Scale)
		}
	}
	a, b := o.A.Block.Cols, o.B.Block.Rows
	if o.TransA {
		a = o.A.Block.Rows
	}
	if o.TransB {
		b = o.B.Block.Cols
	}
	c.that(a <= 0 || b <= 0 || a%b == 0 || b%a == 0, "along k, A has blocks of %d and B of %d: one must divide the other", a, b)
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
