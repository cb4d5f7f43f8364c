package backend

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"octet/fp8"
)

// Op is one of the ops of this package, or one of another package that embeds Custom. An
// op is an exported struct: operand fields are tensors (see collectOperands), all other
// fields are plain values. Ops are used through pointers.
type Op interface {
	check() error // shapes, formats and values, given non-nil operands
}

// Ops returns one zero value of every op, for tests of completeness and for backends
// that list the ops they run.
func Ops() []Op {
	return []Op{
		&MatMul{}, &Epilogue{}, &Hadamard{}, &Quantize{}, &Amax{}, &UpdateScale{}, &PushHistory{}, &Fill{},
		&Embed{}, &EmbedGrad{}, &Add{}, &RMSNorm{}, &RMSNormGrad{}, &Rope{},
		&Attention{}, &AttentionGrad{}, &CacheWrite{},
		&SwiGLU{}, &SwiGLUAmax{}, &SwiGLUGrad{}, &SmoothScale{}, &Activation{}, &ActivationGrad{},
		&CrossEntropy{}, &Sum{},
		&SumSquares{}, &StepGate{}, &UpdateStats{}, &AdamW{},
		&LinearUpdate{}, &SoftmaxStats{},
		&Route{}, &RouteGrad{}, &Gather{}, &Combine{}, &CombineGrad{},
		&CastHealth{}, &RowCosine{},
		&AllReduce{}, &ReduceScatter{}, &AllGather{}, &AllToAll{}, &SumParts{}, &StepMu{},
	}
}

// Cost is the minimum work of a node, along the two axes of a roofline.
type Cost struct {
	FLOPs int64
	Bytes int64 // every operand moved once, those written in place twice
}

// Cost returns the node's cost, which depends on shapes alone.
func (n *Node) Cost() Cost {
	c := Cost{FLOPs: flopsOf(n.Op)}
	for _, o := range n.operands {
		c.Bytes += o.Tensor.Bytes()
		if o.Access == InOut {
			c.Bytes += o.Tensor.Bytes()
		}
	}
	return c
}

// Cast is one stored copy of an op's result. Ops compute their result in FP32 and
// store it through a list of casts, so a result that only GEMMs read is rounded once
// and never stored in a wider format. For a backend without the fused kernel, Unfuse
// turns the casts into Quantize ops.
//
// The stored code is round(x·Scale): one FP32 multiplication and one rounding. Out's
// own scale dequantizes it. Formats of up to eight bits, and F16 with a scale, saturate.
// F32 and BF16, which take no Scale, and F16 without one overflow to infinity, as in IEEE
// 754, so that the overflow is visible (Cast.Overflow). Amax is
// max(Amax, |x|) over the unscaled values before rounding, so a saturating cast cannot
// hide an infinity; NaN counts as larger than infinity.
//
// Stochastic rounding of the result's element (r, c) draws fp8.Random with the key
// fp8.StreamKey(seed, step, fp8.NameKey(StreamName())) and the index r·cols + c,
// transposed or not, plus Control.Token·cols if Tokens.
//
// # Block scales
//
// A cast to an FP8 Out with block scales (Tensor.Block) computes them from the elements
// that it casts. For each block, with a its largest magnitude,
//
//	s = Limit/a, for Rule Pow2Down rounded down to a power of two   (fp8.ScaleFor)
//	s = 2^(127-code), code = fp8.MXScale(a, Out's format, Rule)     if the scale is E8M0
//	code = round(x·s)                                               saturating, as above
//	ScaleInv = 1/s
//
// in FP32. A block of zeros has s = 1, in E8M0 as MXScale says. There is no Amax to
// record a non-finite value, and a saturating cast would hide an infinity. Therefore a
// block with an infinity or a NaN has s = 1 and ScaleInv = NaN, so that it reads as
// NaN. In E8M0, a NaN gives MXScale's NaN; an infinity becomes the format's largest
// value with the largest scale, 2^127, which overflows when it is read.
//
// With Rule Quotient the scales have a floating-point format of up to eight bits, such as
// E4M3, and the tensor may have a scale beside them, as in NVFP4: Scale, whose inverse is
// Out.Outer. fp8.BlockScale.Choose then gives ScaleInv and s, which includes Scale; a
// value is code·ScaleInv·Outer.
//
// ScaleInv is Out's own scale, listed because the cast writes it. Scale and Amax must
// be nil. Only the casts of Quantize may have blocks: other ops do not have all rows of
// a block at hand.
type Cast struct {
	Out      *Tensor `op:"out"`
	Scale    *Tensor `op:"in,optional"`    // F32 [1]; nil is 1
	Amax     *Tensor `op:"inout,optional"` // F32 [1]
	ScaleInv *Tensor `op:"out,optional"`   // of the shape that Out.Block.ScaleShape gives
	// Control supplies seed, step and token index to stochastic rounding.
	Control *Tensor `op:"in,optional"`

	Rounding  fp8.Rounding
	Tokens    bool // rows are tokens: random bits follow the global token index
	Transpose bool // Out is [cols, rows]
	// Stream names the tensor whose random bits stochastic rounding draws, if it is
	// not Out. It gives copies of one tensor in different layouts equal codes.
	Stream string

	// Precision is the format that values are rounded to if Out's has more values: one that
	// BF16 contains (fp8.Format.Container), such as E8M5, for an Out in BF16. It rounds to
	// nearest even, and overflows to infinity as BF16 does; a masked one truncates
	// (fp8.ParseDType).
	Precision fp8.DType

	// Rule says how block scales follow from the blocks' amaxes. Limit applies to scales
	// in F32; others imply Out's largest value.
	Rule  fp8.ScaleRule
	Limit float32
}

// StreamName returns the tensor name that the random bits depend on.
func (c Cast) StreamName() string { return cmp.Or(c.Stream, c.Out.Name) }

// Overflow returns what the cast does with values beyond the largest: infinity for a wide
// format without a scale, saturation otherwise.
func (c Cast) Overflow() fp8.Overflow {
	if c.Out.DType.IsWide() && c.Scale == nil && c.Out.Scale == nil {
		return fp8.NonSaturating
	}
	return fp8.Saturate
}

// check validates the casts of a result of rows × cols.
func (c Cast) check(rows, cols int) error {
	var k checker
	if c.Transpose {
		rows, cols = cols, rows
	}
	k.matrix("Out", c.Out, rows, cols)
	k.float("Out", c.Out)
	k.that(!c.Out.DType.IsForScales(), "Out is %s, a format for scales only", c.Out)
	if c.Out.Block != PerTensor {
		c.checkBlocks(&k)
	} else {
		k.that(c.ScaleInv == nil && c.Limit == 0 && c.Rule == fp8.Exact && c.Out.Outer == nil, "ScaleInv, Out.Outer, Limit and Rule belong to block scales, Out is %s with one scale", c.Out)
	}
	if c.Scale != nil {
		k.scalar("Scale", c.Scale)
		k.that(c.Out.DType != fp8.F32 && c.Out.DType != fp8.BF16, "Out is %s, which takes no scale", c.Out)
	}
	if c.Amax != nil {
		k.scalar("Amax", c.Amax)
	}
	k.that(c.Out.DType.Format().Container == c.Out.DType, "Out is %s, which memory holds as %s: make it that, with Precision %s", c.Out, c.Out.DType.Format().Container, c.Out.DType)
	if c.Precision != fp8.Invalid {
		k.that(c.Precision != c.Out.DType && c.Precision.Format().Container == c.Out.DType, "Precision is %s, which Out, %s, does not contain: use bf16 with fewer bits, such as e8m5, for an Out in bf16", c.Precision, c.Out)
		k.that(c.Rounding == fp8.Nearest, "Precision %s takes no stochastic rounding", c.Precision)
	}
	k.that(c.Rounding <= fp8.Stochastic, "unknown rounding %d", uint8(c.Rounding))
	if c.Rounding == fp8.Stochastic {
		k.that(c.Control != nil, "a stochastic cast needs step.control")
	} else {
		k.that(c.Stream == "", "Stream is %q, but the rounding of %s draws no random bits", c.Stream, c.Out)
	}
	if c.Control != nil {
		k.control(c.Control)
	}
	return k.err
}

func (c Cast) checkBlocks(k *checker) {
	k.that(c.Out.DType.IsQuantized(), "Out is %s with blocks of %s: only formats of up to eight bits take block scales", c.Out, c.Out.Block)
	k.that(c.Out.Block.Rows >= 0 && c.Out.Block.Cols >= 0, "Out is %s with blocks of %s, expected sizes of 0 (the whole extent) or more", c.Out, c.Out.Block)
	k.that(c.ScaleInv != nil && c.ScaleInv == c.Out.Scale, "ScaleInv must be the scale of Out, %s, which has blocks of %s", c.Out, c.Out.Block)
	k.that(c.Amax == nil, "Out is %s with blocks of %s, whose scales come from its elements: Amax must be nil", c.Out, c.Out.Block)
	k.that((c.Scale == nil) == (c.Out.Outer == nil), "Out is %s with blocks of %s: Scale belongs to an outer scale; give both or neither", c.Out, c.Out.Block)
	if c.ScaleInv == nil {
		return
	}
	k.that(c.ScaleInv.Contiguous(), "ScaleInv is %s, which has gaps between its rows: make it a tensor of its own", c.ScaleInv)
	k.that(c.Rule.Gives(c.ScaleInv.DType), "Rule is %s, which gives no scales in the format of ScaleInv, %s", c.Rule, c.ScaleInv)
	if c.ScaleInv.DType == fp8.F32 {
		k.that(c.Limit > 0, "Limit is %v, expected a positive number", c.Limit)
	} else {
		k.that(c.Limit == 0, "Limit belongs to scales in fp32, ScaleInv is %s", c.ScaleInv)
	}
	k.that(c.Out.Outer == nil || c.Rule == fp8.Quotient, "Out is %s with an outer scale, but ScaleInv is %s: its range needs none", c.Out, c.ScaleInv)
}

// checker keeps the first error of an op's check.
type checker struct{ err error }

func (k *checker) that(ok bool, format string, args ...any) {
	if !ok && k.err == nil {
		k.err = fmt.Errorf(format, args...)
	}
}

// matrix requires rows × cols; a vector is one row.
func (k *checker) matrix(field string, t *Tensor, rows, cols int) {
	k.that(t.Rows() == rows && t.Cols() == cols, "%s is %s, expected [%d, %d]", field, t, rows, cols)
}

// vector requires n contiguous F32 elements of any shape.
func (k *checker) vector(field string, t *Tensor, n int) {
	k.that(t.Elems() == n && t.DType == fp8.F32 && t.Contiguous(), "%s is %s, expected fp32[%d]", field, t, n)
	k.unscaled(field, t)
}

// window requires rows of n F32 elements.
func (k *checker) window(field string, t *Tensor, n int) {
	k.that(t.Cols() == n && t.DType == fp8.F32, "%s is %s, expected fp32[window, %d]", field, t, n)
	k.unscaled(field, t)
}

func (k *checker) unscaled(field string, t *Tensor) {
	k.that(t.Scale == nil, "%s is %s with a scale, which this op does not read", field, t)
}

func (k *checker) scalar(field string, t *Tensor) { k.vector(field, t, 1) }

func (k *checker) ints(field string, t *Tensor, n int) {
	k.that(t.Elems() == n && t.DType == fp8.I32, "%s is %s, expected i32[%d]", field, t, n)
	k.unscaled(field, t)
}

func (k *checker) control(t *Tensor) { k.ints("Control", t, ControlWords) }

func (k *checker) dtype(field string, t *Tensor, allowed ...fp8.DType) {
	k.that(slices.Contains(allowed, t.DType), "%s is %s, expected one of %v", field, t, allowed)
}

func (k *checker) float(field string, t *Tensor) {
	k.that(t.DType.IsFloat(), "%s is %s, expected a float format", field, t)
}

// wide requires F32, BF16 or F16.
func (k *checker) wide(field string, t *Tensor) {
	k.that(t.DType.IsWide(), "%s is %s, expected fp32, bf16 or fp16", field, t)
}

// plain requires F32, BF16 or F16 without a scale, as elementwise kernels do.
func (k *checker) plain(fields ...field) {
	for _, f := range fields {
		k.wide(f.name, f.t)
		k.unscaled(f.name, f.t)
	}
}

type field struct {
	name string
	t    *Tensor
}

// casts checks the casts of an op, which take one scale at most.
func (k *checker) casts(name string, casts []Cast, rows, cols int) {
	for i, c := range casts {
		k.that(c.Out.Block == PerTensor, "%s[%d]: Out is %s with blocks of %s: only Quantize computes block scales", name, i, c.Out, c.Out.Block)
	}
	k.blockCasts(name, casts, rows, cols)
}

// blockCasts checks casts that may have block scales.
func (k *checker) blockCasts(name string, casts []Cast, rows, cols int) {
	k.that(len(casts) > 0, "%s has no cast: the result would be lost", name)
	for i, c := range casts {
		if err := c.check(rows, cols); err != nil && k.err == nil {
			k.err = fmt.Errorf("%s[%d]: %w", name, i, err)
		}
	}
}

// ErrUnsupported is wrapped by Load's error for an op that the device cannot run.
var ErrUnsupported = errors.New("unsupported")
