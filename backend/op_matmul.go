package backend

// Accum selects where the partial sums of a GEMM accumulate.
type Accum uint8

const (
	// Promoted accumulates in FP32 (on Hopper, at intervals). It is for dgrad and
	// wgrad. Without a device model, emu computes Fast like Promoted.
	Promoted Accum = iota
	// Fast accumulates in the matrix unit's own accumulator, which has 13 fraction
	// bits on Hopper. It is for fprop.
	Fast
)

func (a Accum) String() string { return [...]string{"promoted", "fast"}[a] }

// MaxIntegerK is the largest K of a MatMul of integer formats: the sum of as many products of
// INT8, at most 127², fits I32.
const MaxIntegerK = (1<<31 - 1) / (127 * 127)

// MatMul is Out = op(A)·op(B), where op is the optional transpose, op(A) is m×k and
// op(B) is k×n. With acc the sum over k, accumulated in FP32 as Accum says,
//
//	v = acc · A.Scale · B.Scale
//	v = v · RowScale[i] · ColScale[j]     where given
//	v = v + Residual[i,j]                 where given, or the old Out if Accumulate
//	Amax = max(Amax, |v|)                 where given
//	Out = round(v · OutScale)
//
// The order is that of cuBLASLt's epilogue: amax before the output scale.
//
// # Integers
//
// The sum of products of integer formats, such as INT8, is exact, in I32, and is converted to
// FP32, rounded to nearest even, before the scales multiply it. K is at most MaxIntegerK.
//
// # Block scales
//
// A and B may have block scales (Tensor.Block). An operand's scale tensor
// is row-major, without gaps, of the shape that ScaleShape gives for the operand as
// stored, transposed or not: a B stored transposed as [n, k] with Block1x128 has scales
// [n, ⌈k/128⌉]. sA, the scale of row i of op(A), and sB, that of column j of op(B), may
// change along k; the smaller of the two blocks must divide the larger. The scale of an
// operand without one is 1. Tensor.Outer multiplies v, as a per-tensor scale does.
//
// Scales of up to eight bits, such as E8M0 and E4M3, multiply elements before these are
// multiplied with each other, if both operands have such scales and fp8.DType.ScaledIsBF16
// holds for both: any format of at most seven bits of mantissa with E8M0, up to E4M3 with E4M3.
// The sum over k is then one, as with per-tensor scales:
//
//	v = +0; v = v + (A[i,l]·sA)·(B[l,j]·sB)   for l = 0, 1, … k-1
//
// Scaled elements and products are exact, so only the additions round. Beyond FP32's range,
// scaled elements round to it, and products do not (an FMA adds them).
//
// Other scales multiply sums. k is divided into runs in which both scales are constant (the
// last run may be shorter), and
//
//	part = +0; part = part + A[i,l]·B[l,j]   for l in the run, over the codes
//	v = part·(sA·sB)                         for the first run
//	v = v + part·(sA·sB)                     for each that follows
//
// in ascending order. The sums over codes accumulate as Accum says. Every other
// operation is FP32, rounded to nearest even: the product of the scales, its product
// with part, the addition. This is DeepSeek-V3's promotion every 128 elements (arXiv
// 2412.19437, 3.3.2) with the scales multiplied first, as in DeepGEMM. Scales that do
// not change along k, per token and per output channel, make one run.
//
// A device model's matrix unit may apply E8M0 scales of blocks of 32 itself if both
// operands have them. emu:b200 multiplies them into the products of its sums, exactly
// and before alignment (backend/arith, Sum.MX), so k is one run. The other sums of device
// models have runs.
type MatMul struct {
	A        *Tensor `op:"in"`
	B        *Tensor `op:"in"`
	RowScale *Tensor `op:"in,optional"` // F32 [m]
	ColScale *Tensor `op:"in,optional"` // F32 [n]
	Residual *Tensor `op:"in,optional"` // [m, n], F32, BF16 or F16
	Out      *Tensor `op:"out,inout=Accumulate"`
	OutScale *Tensor `op:"in,optional"`    // F32 [1], FP8 Out only
	Amax     *Tensor `op:"inout,optional"` // F32 [1], FP8 Out only
	// Used, I32 [1], promises that the rows of A, as stored, from Used on are 0. A backend may
	// leave their products out.
	Used *Tensor `op:"in,optional"`

	TransA, TransB bool
	Accumulate     bool // Out += …, not into an FP8 Out
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
		c.that(f.t.DType.IsQuantized() || f.t.DType.IsWide(), "%s is %s, expected fp32, bf16, fp16 or a format of up to eight bits", f.name, f.t)
	}
	c.that(o.A.DType.IsQuantized() == o.B.DType.IsQuantized(), "A is %s and B is %s: both must have up to eight bits or neither", o.A, o.B)
	c.that(o.A.DType.IsQuantized() || o.A.DType == o.B.DType, "A is %s and B is %s: the formats must be equal", o.A, o.B)
	c.that(o.A.DType.IsInteger() == o.B.DType.IsInteger(), "A is %s and B is %s: an integer format multiplies only integer formats", o.A, o.B)
	c.that(!o.A.DType.IsInteger() || k <= MaxIntegerK, "K is %d, A is %s and B is %s: sums of products of integers fit I32 up to K = %d", k, o.A, o.B, MaxIntegerK)
	if o.Used != nil {
		c.ints("Used", o.Used, 1)
	}
	c.that(o.Accum <= Fast, "unknown accumulation %d", uint8(o.Accum))
	c.blocks(o)
	c.epilogue(o.Epilogue(nil), m, n)
	return c.err
}

// blocks checks the block scales of the operands.
func (c *checker) blocks(o *MatMul) {
	for _, f := range []field{{"A", o.A}, {"B", o.B}} {
		if f.t.Block != PerTensor {
			c.that(f.t.Block.Rows >= 0 && f.t.Block.Cols >= 0, "%s is %s with blocks of %s, expected sizes of 0 (the whole extent) or more", f.name, f.t, f.t.Block)
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

// FLOPs counts m·n·k multiplications and as many additions.
func (o *MatMul) FLOPs() int64 {
	m, n, k := o.Dims()
	return 2 * int64(m) * int64(n) * int64(k)
}
