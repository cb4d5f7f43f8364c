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

// Nearest returns the code of x rounded to nearest, ties to even. It rounds
// before it compares with the maximum: E4M3 rounds 464 to 448 in both modes, and
// larger values become 448 (Saturate) or NaN (NonSaturating).
//
// Zero and values that round to zero keep their sign. NaN loses sign and
// payload: its code has every bit but the sign set, like the canonical NaN of
// PTX. That is 0x7f in the three FP8 formats, 0x7fff in BF16 and F16.
//
// E8M0 has neither sign nor zero and follows PyTorch's float8_e8m0fnu. Nearest
// drops the sign of x; of two equally close powers the larger wins. Values
// below 2^-127 become 2^-127, values between 2^-127 and 2^-126 become 2^-126.
// NaN is 0xff, and so is overflow without saturation. (ml_dtypes instead gives
// NaN for zero and negative values.) For the scales of MX blocks use MXScale.
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
	a := math.Float32bits(x) &^ signBit
	if a > infBits {
		return f.nan()
	}
	code, fraction := f.truncate(a)
	_, carry := bits.Add32(fraction, random, 0)
	return f.finish(code+carry, x, o)
}

// Float32 returns the exact value of a code and ignores bits above the format's
// width. NaN keeps its sign and payload, as in IEEE widening.
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
		exponent-- // the lowest normal binade has the spacing of the subnormals
	}
	value := float32(math.Ldexp(float64(mantissa), exponent+f.minExponent-f.mantissaBits))
	return math.Float32frombits(math.Float32bits(value) | sign)
}

// Table returns the values of all 256 codes of an eight-bit format. Callers
// share the table: do not write to it.
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

// floatRow returns d's row of formats. It panics, naming the method call, if d is
// not a float format.
func (d DType) floatRow(call string) *format {
	if !d.IsFloat() {
		panic(fmt.Sprintf("fp8: %s: %s is not a float format", call, d))
	}
	return &formats[d]
}

// nan returns the code of the canonical NaN of a format with a sign, which is
// also the mask of all bits but the sign.
func (f *format) nan() uint32 { return 1<<(8*f.size-1) - 1 }

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
	fixed := uint64(significand) << 32 >> (23 - uint32(f.mantissaBits) + unit - exponent)
	return (unit-smallest)<<f.mantissaBits + uint32(fixed>>32), uint32(fixed)
}

// finish applies the overflow mode and the sign of x to a rounded code.
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
