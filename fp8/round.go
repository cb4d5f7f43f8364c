package fp8

import (
	"fmt"
	"math"
	"math/bits"
	"strings"
)

// The methods in this file specify every cast in Octet and favor clarity over
// speed. The tests compare the fast slice functions with them bit for bit.

// Rounding selects one of a value's two representable neighbors.
type Rounding uint8

const (
	Nearest    Rounding = iota // the closer neighbor; of two equally close ones, that with the even code
	Stochastic                 // the neighbor farther from zero, with probability equal to the discarded fraction
)

var roundingNames = [...]string{Nearest: "nearest", Stochastic: "stochastic"}

// String returns the lower-case name that recipes, dumps and errors use.
func (r Rounding) String() string {
	if int(r) >= len(roundingNames) {
		return "invalid"
	}
	return roundingNames[r]
}

// ParseRounding returns the Rounding that String names s, ignoring case.
func ParseRounding(s string) (Rounding, error) {
	for r, name := range roundingNames {
		if strings.EqualFold(s, name) {
			return Rounding(r), nil
		}
	}
	return 0, fmt.Errorf("unknown rounding %q (known: nearest, stochastic)", s)
}

// Overflow selects the result for values that exceed the format's maximum
// after rounding, infinities included.
type Overflow uint8

const (
	// Saturate gives the largest finite value of the same sign. FP8 training
	// needs this mode, and NVIDIA's cvt instruction has no other
	// (PTX ISA, cvt: .satfinite is mandatory for e4m3x2 and e5m2x2).
	Saturate Overflow = iota
	// NonSaturating gives infinity, or NaN in a format without infinity
	// (E4M3, E8M0), as ml_dtypes does.
	NonSaturating
)

// Nearest returns the code of x rounded to nearest, ties to the even code. It rounds
// before it compares with the maximum: E4M3 rounds 464 to 448 in both modes, and larger
// values become 448 (Saturate) or NaN (NonSaturating). A format without infinity and NaN
// always saturates.
//
// Zero and values that round to zero keep their sign if the format has -0. NaN loses sign
// and payload: its code has every bit but the sign set, like the canonical NaN of PTX,
// 0x7f in the FP8 formats of OCP, 0x7fff in BF16 and F16; in FNUZ and P3109 it is the
// sign bit alone. In a format without NaN it vanishes: it becomes the largest value in a
// floating-point format, 0 in an integer format.
//
// E8M0 has neither sign nor zero and follows PyTorch's float8_e8m0fnu. Nearest
// drops the sign of x; of two equally close powers the larger wins. Values
// below 2^-127 become 2^-127, values between 2^-127 and 2^-126 become 2^-126.
// NaN is 0xff, and so is overflow without saturation. (ml_dtypes instead gives
// NaN for zero and negative values.) For the scales of MX blocks use MXScale.
//
// The code of a format that BF16 contains (Format.Container) is that of BF16. A masked format
// truncates the nearest BF16 value (ParseDType).
//
// Nearest panics if d is not a float format.
func (d DType) Nearest(x float32, o Overflow) uint32 {
	if d == E8M0 {
		return nearestE8M0(x, o)
	}
	f := d.floatRow("Nearest")
	if f.Mask {
		return f.masked(BF16.Nearest(x, o))
	}
	a := math.Float32bits(x) &^ signBit
	if a > infBits {
		return f.stored(f.nan)
	}
	code, fraction := f.truncate(a)
	const half = 1 << 31
	if fraction > half || fraction == half && code&1 == 1 {
		code++ // a carry out of the significand is the next exponent, as it should be
	}
	return f.stored(f.finish(code, x, o))
}

// Stochastic returns the code of x under stochastic rounding: away from zero
// with probability f, the fraction of a spacing that truncation discards, else
// toward zero. The expected value is x.
//
// The 32 random bits decide: the code increases exactly if floor(f·2³²) + random
// carries out of 32 bits, as PTX describes cvt.rs. Representable values never
// change. The 16 bits of the function Random truncate f to a multiple of 2^-16.
//
// Zeros, NaN and overflow are as in Nearest. Between the maximum and the value
// that would follow it, NonSaturating overflows with probability f.
//
// Stochastic panics if d is not a float format or is E8M0: scales have no
// stochastic rounding.
func (d DType) Stochastic(x float32, random uint32, o Overflow) uint32 {
	if d == E8M0 {
		panic("fp8: Stochastic: e8m0 is a scale format and has no stochastic rounding")
	}
	f := d.floatRow("Stochastic")
	if f.Mask {
		return f.masked(BF16.Stochastic(x, random, o))
	}
	a := math.Float32bits(x) &^ signBit
	if a > infBits {
		return f.stored(f.nan)
	}
	code, fraction := f.truncate(a)
	_, carry := bits.Add32(fraction, random, 0)
	return f.stored(f.finish(code+carry, x, o))
}

// Float32 returns the exact value of a code and ignores bits above the format's
// width. NaN keeps its sign and payload, as in IEEE widening.
//
// Float32 panics if d is not a float format.
func (d DType) Float32(code uint32) float32 {
	f := d.floatRow("Float32")
	if f.Container == BF16 {
		return math.Float32frombits(code << 16)
	}
	return f.float32(code)
}

// Table returns the values of all 256 codes of a format of at most eight bits; of a
// smaller format it repeats them. Callers share the table: do not write to it.
//
// Table panics if d has more than eight bits.
func (d DType) Table() *[256]float32 {
	t := d.row().values
	if t == nil {
		panic(fmt.Sprintf("fp8: Table: %s has no codes of at most eight bits", d))
	}
	return t
}

const (
	signBit = 1 << 31
	infBits = 0x7f800000 // float32 infinity; also the mask of the exponent
)

// floatRow returns d's row. It panics, naming the method call, if d is not a float format.
func (d DType) floatRow(call string) *format {
	if !d.IsFloat() {
		panic(fmt.Sprintf("fp8: %s: %s is not a float format", call, d))
	}
	return rows[d]
}

// float32 is DType.Float32 for the format's own codes.
func (f *format) float32(code uint32) float32 {
	code &= 1<<f.Bits - 1
	switch f.Kind {
	case Power:
		if code > f.maxCode {
			return math.Float32frombits(infBits | 1<<22)
		}
		return float32(math.Ldexp(1, int(code)-127))
	case Integer:
		return float32(int32(code<<(32-f.Bits)) >> (32 - f.Bits))
	}
	sign, magnitude := code/f.sign<<31, code&(f.sign-1)
	switch {
	case code == f.sign && (f.Special == FNUZ || f.Special == P3109):
		return math.Float32frombits(sign | infBits | 1<<22)
	case magnitude > f.maxCode:
		payload := uint32(0)
		if f.Special != P3109 {
			payload = magnitude << (23 - f.Mantissa) & (1<<23 - 1)
		}
		return math.Float32frombits(sign | infBits | payload)
	}
	return math.Float32frombits(math.Float32bits(f.value(magnitude)) | sign)
}

// value returns the value of the code of a magnitude, finite.
func (f *format) value(magnitude uint32) float32 {
	exponent, mantissa := int(magnitude>>f.Mantissa), magnitude&(1<<f.Mantissa-1)
	if exponent > 0 {
		mantissa |= 1 << f.Mantissa
		exponent-- // the lowest normal binade has the spacing of the subnormals
	}
	return float32(math.Ldexp(float64(mantissa), exponent+f.minExponent-f.Mantissa))
}

// stored returns the code that memory holds for a code of f.
func (f *format) stored(code uint32) uint32 {
	switch {
	case f.Container != BF16 || f == rows[BF16]:
		return code
	case code == f.nan:
		return rows[BF16].nan
	}
	return math.Float32bits(f.float32(code)) >> 16
}

// masked returns the BF16 code of a masked format for a BF16 code.
func (f *format) masked(code uint32) uint32 {
	const sign, infinity = 1 << 15, 0x7f80
	smallest, largest := uint32(127+f.minExponent)<<7, math.Float32bits(f.max)>>16
	a := code &^ sign
	switch {
	case a >= infinity:
		return code
	case a < smallest:
		a = 0
	case a > largest:
		a = largest
	}
	return code&sign | a>>(7-f.Mantissa)<<(7-f.Mantissa)
}

// truncate rounds the float32 with the bits a, non-negative and not NaN, toward
// zero. It returns the code, as if the exponent had no maximum, and the
// discarded fraction f of a unit in the last place, as floor(f·2³²). The floor
// never changes a rounding: f has more than 32 bits only below 2^-8.
func (f *format) truncate(a uint32) (code, fraction uint32) {
	exponent, significand := a>>23, a&(1<<23-1)
	if exponent > 0 {
		significand |= 1 << 23
	} else {
		exponent = 1
	}
	// Below the smallest normal value, all subnormals share one spacing.
	smallest := uint32(127 + f.minExponent)
	unit := max(exponent, smallest)
	fixed := uint64(significand) << 32 >> (23 - uint32(f.Mantissa) + unit - exponent)
	return (unit-smallest)<<f.Mantissa + uint32(fixed>>32), uint32(fixed)
}

// finish applies the overflow mode and the sign of x to the rounded code of a magnitude.
func (f *format) finish(code uint32, x float32, o Overflow) uint32 {
	if code > f.maxCode {
		switch {
		case o == Saturate || f.Kind == Integer || f.Special == Fin:
			code = f.maxCode
		case f.Special == FNUZ:
			return f.nan
		default: // infinity, or NaN in FN
			code = f.maxCode + 1
		}
	}
	if math.Float32bits(x)&signBit == 0 {
		return code
	}
	return f.negative(code)
}

// negative returns the code of minus a magnitude.
func (f *format) negative(magnitude uint32) uint32 {
	switch {
	case f.Kind == Integer:
		return -magnitude & (f.sign<<1 - 1)
	case magnitude == 0 && (f.Special == FNUZ || f.Special == P3109):
		return 0
	}
	return magnitude | f.sign
}

func nearestE8M0(x float32, o Overflow) uint32 {
	a := math.Float32bits(x) &^ signBit
	var code uint32
	switch {
	case a > infBits:
		return 0xff
	case a >= 1<<23:
		code = (a + 1<<22) >> 23
	case a > 1<<22: // above 2^-127, a float32 subnormal
		code = 1
	}
	if code > 0xfe && o == Saturate {
		code = 0xfe
	}
	return code
}
