package backend

import (
	"math"

	"octet/fp8"
)

// Quantize reads X once and writes any number of copies, each with its own format,
// scale, layout and rounding. RowScale multiplies the rows and ColScale the columns
// (Smooth-SwiGLU's r ⊙ dY and W3 ⊙ c), in this order, after X's own scale and before
// amax and casts, each multiplication in FP32. Its casts may have block scales.
//
// X in a format of eight bits may have block scales, but no outer scale: Quantize dequantizes
// it, each element times its scale_inv in FP32.
type Quantize struct {
	X        *Tensor `op:"in"`          // F32, BF16, F16 or of eight bits, with or without a scale; see below
	RowScale *Tensor `op:"in,optional"` // F32 [rows]
	ColScale *Tensor `op:"in,optional"` // F32 [cols]
	Out      []Cast  `op:"cast"`
}

func (o *Quantize) check() error {
	var c checker
	if o.X.DType.IsQuantized() {
		c.that(o.X.DType.Size() == 1, "X is %s, of which a byte holds two elements: expected eight bits or more", o.X)
		c.that(o.X.Outer == nil, "X is %s with an outer scale, which Quantize does not read", o.X)
	} else {
		c.wide("X", o.X)
		c.that(o.X.Block == PerTensor, "X is %s with blocks of %s: only formats of eight bits have block scales here", o.X, o.X.Block)
	}
	if o.X.Block == PerTensor && o.X.Scale != nil {
		c.dtype("X.Scale", o.X.Scale, fp8.F32)
	}
	if o.RowScale != nil {
		c.vector("RowScale", o.RowScale, o.X.Rows())
	}
	if o.ColScale != nil {
		c.vector("ColScale", o.ColScale, o.X.Cols())
	}
	c.blockCasts("Out", o.Out, o.X.Rows(), o.X.Cols())
	return c.err
}

// Amax is the largest magnitude of X: of the whole tensor if Out has one element, of
// each column if Out has X's columns. NaN counts as larger than infinity, infinity as
// larger than any finite value.
type Amax struct {
	X   *Tensor `op:"in"` // F32, BF16 or F16, with or without a scale
	Out *Tensor `op:"out"`
}

func (o *Amax) check() error {
	var c checker
	c.wide("X", o.X)
	if o.Out.Elems() != 1 {
		c.vector("Out", o.Out, o.X.Cols())
	} else {
		c.scalar("Out", o.Out)
	}
	return c.err
}

// UpdateScale computes n scales from their recorded amaxes. With a the maximum over
// the window, Scale = Limit/a, rounded down to a power of two if Pow2, and
// ScaleInv = 1/Scale. If a is 0 or not finite, or if Skip is set, both stay as they
// are if Keep; else Scale becomes 1 (fp8.ScaleFor), and ScaleInv 1 or, if a is not finite,
// NaN, so that a NaN is not lost in a format without one. Limit is the format's largest
// value, less the margin. Seen is always updated.
//
// Factor multiplies Scale, itself rounded down to a power of two if Pow2. With Fixed, Scale
// is Limit for every finite a, and a only tells whether it is finite.
//
// Current scaling uses UpdateScale inside a micro-batch with a window of one, delayed
// scaling once per update with the amax history.
type UpdateScale struct {
	History  *Tensor `op:"in"`             // F32 [window, n]
	Skip     *Tensor `op:"in,optional"`    // I32 [1]
	Factor   *Tensor `op:"in,optional"`    // F32 [n], positive; nil is 1
	Seen     *Tensor `op:"inout,optional"` // F32 [n]: max(Seen, a), the step's largest current amax
	Scale    *Tensor `op:"out,inout=Keep"` // F32 [n]
	ScaleInv *Tensor `op:"out,inout=Keep"` // F32 [n]

	Limit float32
	Pow2  bool
	Keep  bool
	// Outer chooses a scale for Cast.Scale beside block scales, without the bounds and the
	// rounding of the others: see fp8.OuterScale. Limit is then the product of the largest
	// block scale and the largest element.
	Outer bool
	Fixed bool
}

func (o *UpdateScale) check() error {
	var c checker
	n := o.Scale.Elems()
	c.window("History", o.History, n)
	c.vector("Scale", o.Scale, n)
	c.vector("ScaleInv", o.ScaleInv, n)
	if o.Seen != nil {
		c.vector("Seen", o.Seen, n)
	}
	if o.Skip != nil {
		c.ints("Skip", o.Skip, 1)
		c.that(o.Keep, "Skip without Keep would leave the scale unwritten")
	}
	c.that(o.Limit > 0, "Limit is %v, expected a positive number", o.Limit)
	c.that(!o.Outer || !o.Pow2, "Outer excludes Pow2")
	if o.Factor != nil {
		c.vector("Factor", o.Factor, n)
		c.that(!o.Outer && !o.Fixed, "Factor excludes Outer and Fixed")
	}
	c.that(!o.Fixed || !o.Outer && !o.Pow2, "Fixed excludes Outer and Pow2")
	return c.err
}

// Choose returns the scale and scale_inv for an amax and its factor; ok reports whether the
// amax is positive and finite, or with Fixed, finite.
func (o *UpdateScale) Choose(amax, factor float32) (scale, inv float32, ok bool) {
	scale, ok = fp8.ScaleFor(amax, o.Limit, o.Pow2)
	switch {
	case o.Outer:
		scale = fp8.OuterScale(amax, o.Limit)
	case o.Fixed && amax <= math.MaxFloat32:
		scale, ok = o.Limit, true
	case ok:
		scale = fp8.Factored(scale, factor, o.Pow2)
	}
	inv = 1 / scale
	if !ok && amax != 0 {
		inv = float32(math.NaN())
	}
	return scale, inv, ok
}

// PushHistory shifts the rows of History down by one and puts Value into row 0,
// unless Skip is set.
type PushHistory struct {
	Value   *Tensor `op:"in"`          // F32 [n]
	Skip    *Tensor `op:"in,optional"` // I32 [1]
	History *Tensor `op:"inout"`       // F32 [window, n]
}

func (o *PushHistory) check() error {
	var c checker
	n := o.Value.Elems()
	c.vector("Value", o.Value, n)
	c.window("History", o.History, n)
	if o.Skip != nil {
		c.ints("Skip", o.Skip, 1)
	}
	return c.err
}

// Fill sets every element to Value, for example to clear an accumulator.
type Fill struct {
	Out *Tensor `op:"out"`

	Value float32
}

func (o *Fill) check() error {
	var c checker
	c.plain(field{"Out", o.Out})
	return c.err
}
