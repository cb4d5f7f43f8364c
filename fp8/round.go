package fp8

import (
	"fmt"
	"math"
	"math/bits"
	"strings"
)

// The methods in this file are the specification of every cast in Octet: they
// are written to be read. The functions on slices do the same arithmetic fast
// and are tested against these, bit for bit.

// Rounding says which of the two representable neighbours a value becomes.
type Rounding uint8

const (
	Nearest    Rounding = iota // the closer one; half way, the one with the even code
	Stochastic                 // the farther from zero with the probability of the discarded fraction
)

var roundingNames = [...]string{Nearest: "nearest", Stochastic: "stochastic"}

// String returns the lower-case name that recipes, dumps and errors use.
func (r Rounding) String() string {
	if int(r) >= len(roundingNames) {
		return "invalid"
	}
	return roundingNames[r]
}

// ParseRounding is the inverse of String.
func ParseRounding(s string) (Rounding, error) {
	for r, name := range roundingNames {
		if strings.EqualFold(s, name) {
			return Rounding(r), nil
		}
	}
	return 0, fmt.Errorf("unknown rounding %q (known: nearest, stochastic)", s)
}

// Overflow says what a value becomes that is larger than the format's maximum
// after rounding. Infinity is such a value.
type Overflow uint8

const (
	// Saturate makes it the largest finite value of its sign. It is what FP8
	// training wants, and the only thing the cvt instruction of NVIDIA does
	// (PTX ISA, cvt: .satfinite is mandatory for e4m3x2 and e5m2x2).
	Saturate Overflow = iota
	// NonSaturating makes it an infinity, or NaN in a format without one
	// (E4M3, E8M0). It is what ml_dtypes does.
	NonSaturating
)

// Nearest returns the code of x rounded to nearest, ties to even: round first,
// then compare with the maximum, so that E4M3 takes 464 to 448 in both modes
// and everything above it to 448 or NaN.
//
// Zero keeps its sign, and what rounds to zero too. A NaN loses sign and
// payload and becomes the code with every bit but the sign set, the canonical
// NaN of PTX: 0x7f in the three FP8 formats, 0x7fff in BF16 and F16.
//
// E8M0 has neither sign nor zero, and its rule is PyTorch's for
// float8_e8m0fnu: the sign is dropped, half way between two powers the larger
// wins, what is below 2^-127 becomes 2^-127, what is between that and 2^-126
// becomes 2^-126, NaN is 0xff, and so is overflow, infinity included, unless
// it saturates. (ml_dtypes differs in giving NaN for zero and negative
// values.) Scales of blocks are not made with this but with MXScale.
//
// Nearest panics if d is not a float format.
func (d DType) Nearest(x float32, o Overflow) uint32 {
	if d == E8M0 {
		return nearestE8M0(x, o)
	}
	f := d.floatRow("Nearest")
	a := math.Float32bits(x) &^ signBit
	if a > infBits {
		return f.nan()
	}
	code, fraction := f.truncate(a)
	const half = 1 << 31
	if fraction > half || fraction == half && code&1 == 1 {
		code++ // a carry out of the significand is the next exponent, as it should be
	}
	return f.finish(code, x, o)
}

// Stochastic returns the code of x rounded away from zero with probability f,
// the fraction that truncation discards, and toward zero otherwise, so that
// the rounded value is x on average. The 32 random bits decide: the code moves
// up exactly if floor(f·2³²) + random carries out of 32 bits, which is how PTX
// describes its cvt.rs. Representable values never move. Where random comes from
// Random, f counts only to a multiple of 2^-16.
//
// Zeros, NaN and overflow are as in Nearest; between the maximum and what
// would be the next code, NonSaturating overflows with probability f.
//
// Stochastic panics if d is not a float format, and for E8M0: a scale that is
// rounded at random is a mistake.
func (d DType) Stochastic(x float32, random uint32, o Overflow) uint32 {
	if d == E8M0 {
		panic("fp8: Stochastic: e8m0 is a scale format and has no stochastic rounding")
	}
	f := d.floatRow("Stochastic")
	a := math.Float32bits(x) &^ signBit
	if a > infBits {
		return f.nan()
	}
	code, fraction := f.truncate(a)
	_, carry := bits.Add32(fraction, random, 0)
	return f.finish(code+carry, x, o)
}

// Float32 returns the value of a code, exactly; bits above the format's width
// are ignored. NaN keeps its sign and payload as IEEE widening does.
//
// Float32 panics if d is not a float format.
func (d DType) Float32(code uint32) float32 {
	if d == E8M0 {
		if code&0xff == 0xff {
			return math.Float32frombits(infBits | 1<<22)
		}
		return float32(math.Ldexp(1, int(code&0xff)-127))
	}
	f := d.floatRow("Float32")
	magnitude := code & f.nan()
	sign := code >> (8*f.size - 1) & 1 << 31
	mantissa := magnitude & (1<<f.mantissaBits - 1)
	if magnitude > f.maxCode {
		return math.Float32frombits(sign | infBits | mantissa<<(23-f.mantissaBits))
	}
	exponent := int(magnitude >> f.mantissaBits)
	if exponent > 0 {
		mantissa |= 1 << f.mantissaBits
		exponent-- // the first normal binade has the unit of the subnormals
	}
	value := float32(math.Ldexp(float64(mantissa), exponent+f.minExponent-f.mantissaBits))
	return math.Float32frombits(math.Float32bits(value) | sign)
}

// Table returns the values of all 256 codes of an eight-bit format. It is
// shared: do not write to it.
//
// Table panics if d does not have eight bits.
func (d DType) Table() *[256]float32 {
	if d.Size() != 1 {
		panic(fmt.Sprintf("fp8: Table: %s does not have eight bits", d))
	}
	return &tables[d]
}

var tables = func() (t [len(formats)][256]float32) {
	for d := range t {
		for code := range t[d] {
			if DType(d).Size() == 1 {
				t[d][code] = DType(d).Float32(uint32(code))
			}
		}
	}
	return t
}()

const (
	signBit = 1 << 31
	infBits = 0x7f800000 // float32 infinity; also the mask of the exponent
)

// floatRow returns d's row for the method named call.
func (d DType) floatRow(call string) *format {
	if !d.IsFloat() {
		panic(fmt.Sprintf("fp8: %s: %s is not a float format", call, d))
	}
	return &formats[d]
}

// nan is the canonical NaN of a format with a sign, and the mask of all bits
// but that sign.
func (f *format) nan() uint32 { return 1<<(8*f.size-1) - 1 }

// truncate takes the float32 with the bits a, which has no sign and is not
// NaN, toward zero. It returns the code of the result, as if there were no
// largest exponent, and the discarded fraction of a unit in the last place as
// floor(f·2³²). That floor loses nothing that a rounding asks for: where f has
// more than 32 bits it is below 2^-8.
func (f *format) truncate(a uint32) (code, fraction uint32) {
	exponent, significand := a>>23, a&(1<<23-1)
	if exponent > 0 {
		significand |= 1 << 23
	} else {
		exponent = 1
	}
	// Below the smallest normal number the unit stays that of the subnormals.
	smallest := uint32(127 + f.minExponent)
	unit := max(exponent, smallest)
	fixed := uint64(significand) << 32 >> (23 - uint32(f.mantissaBits) + unit - exponent)
	return (unit-smallest)<<f.mantissaBits + uint32(fixed>>32), uint32(fixed)
}

// finish applies the overflow rule and the sign of x to a rounded code.
func (f *format) finish(code uint32, x float32, o Overflow) uint32 {
	if code > f.maxCode {
		code = f.maxCode
		if o == NonSaturating {
			code++
		}
	}
	return code | math.Float32bits(x)>>31<<(8*f.size-1)
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
