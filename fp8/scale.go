package fp8

import "math"

// ScaleRule says how the scale of elements follows from their amax. A code is
// round(x·scale), and scale_inv, the stored factor that dequantizes, is 1/scale.
type ScaleRule uint8

const (
	// Exact: scale is limit/amax in FP32, see ScaleFor.
	Exact ScaleRule = iota
	// Pow2Down: limit/amax, rounded down to a power of two.
	Pow2Down
	// RoundUp: scale_inv is amax/max, rounded up to a power of two in E8M0, see MXScale.
	RoundUp
	// RoundDown: scale_inv is the power of two below amax over that below max, as OCP
	// Microscaling 1.0, section 6.3, says: the largest elements can saturate.
	RoundDown
	// Quotient: scale_inv is amax/max, rounded to nearest in the format of the scale.
	Quotient
)

var ruleNames = [...]string{Exact: "exact", Pow2Down: "pow2", RoundUp: "up", RoundDown: "down", Quotient: "quotient"}

// String returns the lower-case name that dumps and errors use.
func (r ScaleRule) String() string {
	if int(r) >= len(ruleNames) {
		return "invalid"
	}
	return ruleNames[r]
}

// Gives reports whether scales that r chooses can have the format d.
func (r ScaleRule) Gives(d DType) bool {
	switch r {
	case Exact, Pow2Down:
		return d == F32
	case RoundUp, RoundDown:
		return d == E8M0
	}
	return d.IsQuantized() && d.Size() > 0 && d.Format().Kind == Float && d.HasNaN()
}

// ScaleFor returns the scale that maps amax to limit, the format's maximum (less
// a margin): limit/amax. With pow2 it rounds that down to a power of two, so
// that scaling and unscaling are exact. amax·scale, rounded to float32, does not
// exceed limit.
//
// The scale stays within [2^-126, 2^126], so that 1/scale is a normal float32,
// exact if scale is a power of two. Only a limit below 4, with an amax near the
// maximum of float32, reaches the lower bound; amax·scale then exceeds limit.
//
// If amax is 0, NaN or infinite, ScaleFor returns 1 and false: keep the current
// scale, or use 1 if there is none.
func ScaleFor(amax, limit float32, pow2 bool) (scale float32, ok bool) {
	if !(amax > 0 && amax <= math.MaxFloat32) {
		return 1, false
	}
	scale = limit / amax
	if scale*amax > limit { // the quotient was rounded up
		scale = math.Nextafter32(scale, 0)
	}
	if pow2 {
		scale = math.Float32frombits(math.Float32bits(scale) & infBits)
	}
	return min(max(scale, 0x1p-126), 0x1p126), true
}

// Factored returns a scale of ScaleFor times a positive factor, which it rounds down to a
// power of two with pow2. The result has the bounds of ScaleFor.
func Factored(scale, factor float32, pow2 bool) float32 {
	if pow2 {
		factor = math.Float32frombits(math.Float32bits(factor) & infBits)
	}
	return min(max(scale*factor, 0x1p-126), 0x1p126)
}

// ScaleRange returns the smallest and the largest scale_inv that a cast stores in the
// format d. F32 has the bounds of ScaleFor. A floating-point format of up to eight bits has
// 0, the scale of a block that underflows.
func (d DType) ScaleRange() (lowest, highest float32) {
	switch d {
	case F32:
		return 0x1p-126, 0x1p126
	case E8M0:
		return 0x1p-127, 0x1p127
	}
	return 0, d.Max()
}

// BlockScale chooses the scales of the blocks of a tensor from their amaxes.
type BlockScale struct {
	Elements DType // format of the elements
	Stored   DType // format of the scales: F32, E8M0, or a floating-point format of up to eight bits
	Rule     ScaleRule
	Limit    float32 // of F32: the magnitude that an amax is scaled to
	// Outer multiplies all elements of the tensor before they are scaled by block, for
	// Quotient: see OuterScale. Its inverse, rounded to float32, is the outer
	// scale_inv. 1 without one.
	Outer float32
}

// OuterScale returns the scale of a tensor that has scales per block too: limit/amax, at
// most the largest float32, and 1 for an amax of 0 or if the quotient is 0. amax is that of
// the whole tensor, and limit the product of the largest block scale and the largest
// element, 448·6 in NVFP4, so that the largest block has the largest scale. The inverse is
// the global decode scale of Transformer Engine's NVFP4. An amax of NaN or infinity gives
// NaN.
func OuterScale(amax, limit float32) float32 {
	if amax-amax != 0 {
		return float32(math.NaN())
	}
	s := min(limit/amax, math.MaxFloat32)
	if amax == 0 || s == 0 {
		return 1
	}
	return s
}

// Choose returns the code of a block's scale_inv, of F32 its bits, and the factor that
// multiplies the block's elements before the cast. amax is the block's. An amax of NaN
// gives NaN, infinity the largest scale of E8M0 and otherwise NaN.
//
// Quotient, as Transformer Engine's NVFP4: scale_inv is amax·Outer/max, rounded to nearest
// (so that the largest elements can saturate), and the factor Outer/scale_inv, at most the
// largest float32. In a block far below the others scale_inv is 0: the codes are those of
// the largest value, and the values 0.
func (b *BlockScale) Choose(amax float32) (code uint32, factor float32) {
	switch b.Rule {
	case RoundUp, RoundDown:
		c := MXScale(amax, b.Elements, b.Rule)
		return uint32(c), E8M0.Float32(uint32(254 - c)) // NaN is its own inverse
	case Quotient:
		f := b.Stored.row()
		if amax-amax != 0 || b.Outer != b.Outer {
			return f.nan, float32(math.NaN())
		}
		code = b.Stored.Nearest(min(amax*float32(b.Outer*float32(1/b.Elements.Max())), f.max), Saturate)
		return code, min(1/float32(f.float32(code)*float32(1/b.Outer)), math.MaxFloat32)
	}
	scale, ok := ScaleFor(amax, b.Limit, b.Rule == Pow2Down)
	inverse := 1 / scale
	if !ok && amax != 0 {
		inverse = float32(math.NaN())
	}
	return math.Float32bits(inverse), scale
}

// MXScale returns the E8M0 code of the scale of an MX block with elements of the
// format d and the largest magnitude amax. With RoundUp, the scale is the smallest power of
// two by which the block can be divided without exceeding d.Max(): amax/d.Max()
// rounded up, as in cuBLAS and Transformer Engine (RCEIL in torchao). RoundDown, the rule of
// the OCP specification, section 6.3 (FLOOR in torchao), subtracts the exponents and
// saturates the largest elements, in E4M3 by up to an eighth.
//
// The caller casts x·2^(127-code). An amax of 0, or too small for E8M0, gives
// code 0. Infinity gives 0xfe, like the saturating hardware conversion; NaN gives
// 0xff, which is NaN.
func MXScale(amax float32, d DType, rule ScaleRule) uint8 {
	switch {
	case amax != amax:
		return 0xff
	case amax > math.MaxFloat32:
		return 0xfe
	case amax <= 0:
		return 0
	}
	// The code is the difference of the exponents, for RoundUp plus one if amax has the
	// larger significand. A subnormal amax is below every format's smallest scale.
	const significand = 1<<23 - 1
	a, limit := math.Float32bits(amax), math.Float32bits(d.Max())
	code := int(a>>23) - int(limit>>23) + 127
	if rule == RoundUp && a&significand > limit&significand {
		code++
	}
	return uint8(min(max(code, 0), 0xfe))
}
