package fp8

import (
	"fmt"
	"math"
	"os"
	"slices"
	"sort"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

var (
	fp8Formats = []DType{E4M3, E4M3IEEE, E5M2}
	// codeFormats have codes of at most eight bits: all named ones, and some of each kind
	// that the grammar allows.
	codeFormats = func() []DType {
		list := append(fp8Formats, E2M1, E2M3, E3M2, INT8, INT4)
		for _, name := range []string{
			"e3m4", "e2m4", "e4m2", "e1m2", "e2m5fin", "e5m2fn", "e6m1", "e4m3b11", "e3m1b0", "e2m1ieee", "e3m2fn",
			"e4m3fnuz", "e5m2fnuz", "e3m2fnuz", "e5m2p3109", "e4m3p3109", "e3m3p3109",
		} {
			list = append(list, parsed(name))
		}
		return list
	}()
	// kinds are one format of each kind that the slice functions treat differently.
	kinds = []DType{E4M3, E5M2, E2M3, INT8, INT4, parsed("e4m3fnuz"), parsed("e6m1"), parsed("e5m2p3109")}
	// roundedFormats are rounded values of BF16.
	roundedFormats = []DType{parsed("e8m3"), parsed("e8m5"), parsed("e7m7"), parsed("e5m4"), parsed("e6m3")}
	castFormats    = slices.Concat(codeFormats, []DType{BF16, F16})
	overflows      = []Overflow{Saturate, NonSaturating}
)

func parsed(name string) DType {
	d, err := ParseDType(name)
	if err != nil {
		panic(err)
	}
	return d
}

// oracle is a reference of one format, independent of the code under test. It
// lists the non-negative finite values in the order of their codes, in float64,
// where the values, their midpoints and every float32 are exact.
type oracle struct {
	values   []float64 // plus the value that would follow the largest one
	overflow uint32    // the code after the largest finite one
	beyond   uint32    // what overflow gives without saturation, before the sign
	sign     uint32
	nan      uint32
	integer  bool
	noSigned bool // NaN in place of -0
}

// newOracle computes the values binade by binade. Bias, exponent and mantissa bits come
// from the papers that define the formats, or from the name. last is the number of codes
// with the top exponent that stand for finite values, less one.
func newOracle(d DType) *oracle {
	type layout struct {
		bias, exponentBits, mantissaBits, last int
		special                                string
	}
	if d == INT8 || d == INT4 {
		o := &oracle{integer: true, sign: map[DType]uint32{INT8: 128, INT4: 8}[d]}
		for i := range o.sign + 1 {
			o.values = append(o.values, float64(i))
		}
		o.overflow, o.beyond = o.sign, o.sign-1
		return o
	}
	l, ok := map[string]layout{
		"e4m3":      {7, 4, 3, 6, "nan"},
		"e4m3ieee":  {7, 4, 3, -1, "inf"},
		"e5m2":      {15, 5, 2, -1, "inf"},
		"bf16":      {127, 8, 7, -1, "inf"},
		"fp16":      {15, 5, 10, -1, "inf"},
		"e2m1":      {1, 2, 1, 1, "none"},
		"e2m3":      {1, 2, 3, 7, "none"},
		"e3m2":      {3, 3, 2, 3, "none"},
		"e3m4":      {3, 3, 4, -1, "inf"},
		"e2m4":      {1, 2, 4, 15, "none"},
		"e4m2":      {7, 4, 2, 3, "none"},
		"e1m2":      {0, 1, 2, 3, "none"},
		"e2m5fin":   {1, 2, 5, 31, "none"},
		"e5m2fn":    {15, 5, 2, 2, "nan"},
		"e6m1":      {31, 6, 1, -1, "inf"},
		"e4m3b11":   {11, 4, 3, 6, "nan"},
		"e3m1b0":    {0, 3, 1, 1, "none"},
		"e2m1ieee":  {1, 2, 1, -1, "inf"},
		"e3m2fn":    {3, 3, 2, 2, "nan"},
		"e4m3fnuz":  {8, 4, 3, 7, "zero"},
		"e5m2fnuz":  {16, 5, 2, 3, "zero"},
		"e3m2fnuz":  {4, 3, 2, 3, "zero"},
		"e5m2p3109": {16, 5, 2, 2, "zero and inf"},
		"e4m3p3109": {8, 4, 3, 6, "zero and inf"},
		"e3m3p3109": {4, 3, 3, 6, "zero and inf"},
	}[d.String()]
	if !ok {
		panic("oracle: no layout for " + d.String())
	}
	o := &oracle{sign: 1 << (l.exponentBits + l.mantissaBits), noSigned: strings.HasPrefix(l.special, "zero")}
	per := 1 << l.mantissaBits
	o.overflow = uint32((1<<l.exponentBits-1)<<l.mantissaBits + l.last + 1)
	for code := range int(o.overflow) + 1 {
		e, m := code/per, code%per
		v := (1 + float64(m)/float64(per)) * math.Pow(2, float64(e-l.bias))
		if e == 0 {
			v = float64(m) / float64(per) * math.Pow(2, float64(1-l.bias))
		}
		o.values = append(o.values, v)
	}
	o.beyond, o.nan = o.overflow, o.sign-1
	switch l.special {
	case "none":
		o.beyond = o.overflow - 1
	case "zero":
		o.beyond, o.nan = o.sign, o.sign
	case "zero and inf":
		o.nan = o.sign
	}
	return o
}

// signed returns the code of a magnitude with a sign.
func (o *oracle) signed(code uint32, negative bool) uint32 {
	switch {
	case !negative || o.noSigned && (code == 0 || code == o.sign):
		return code
	case o.integer:
		return (2*o.sign - code) % (2 * o.sign)
	}
	return code | o.sign
}

// below returns the code of the largest value not above x >= 0. From the value
// after the largest one on, that is o.overflow.
func (o *oracle) below(x float64) uint32 {
	return uint32(sort.Search(len(o.values), func(i int) bool { return o.values[i] > x }) - 1)
}

// nearest returns the expected code of |x|, given code = below(|x|).
func (o *oracle) nearest(x float64, code uint32, mode Overflow) uint32 {
	if code < o.overflow {
		middle := (o.values[code] + o.values[code+1]) / 2
		if x > middle || x == middle && code%2 == 1 {
			code++
		}
	}
	return o.limit(code, mode)
}

// threshold returns the smallest 32-bit random value that rounds |x| up; 2^32 if
// none does.
func (o *oracle) threshold(x float64, code uint32) uint64 {
	if code >= o.overflow {
		return 1 << 32
	}
	fraction := (x - o.values[code]) / (o.values[code+1] - o.values[code])
	return 1<<32 - uint64(fraction*0x1p32) // the conversion is floor
}

func (o *oracle) limit(code uint32, mode Overflow) uint32 {
	switch {
	case code < o.overflow:
		return code
	case mode == Saturate:
		return o.overflow - 1
	}
	return o.beyond
}

// check compares both scalar casts of x and -x with the oracle; code is
// below(|x|). It stops the test at the first difference.
func (o *oracle) check(t *testing.T, d DType, bits, code uint32) {
	magnitude := float64(math.Float32frombits(bits))
	first := o.threshold(magnitude, code)
	for _, negative := range [2]bool{false, true} {
		x := float32(magnitude)
		if negative {
			x = -x
		}
		if bits > 0x7f800000 { // a conversion could change NaN
			x = math.Float32frombits(bits | math.Float32bits(x)&(1<<31))
		}
		for _, mode := range overflows {
			if code+1 < o.overflow && mode != Overflow(bits&1) {
				continue // far below the maximum the modes agree: check one of them
			}
			if bits > 0x7f800000 {
				if d.Nearest(x, mode) != o.nan || d.Stochastic(x, bits*0x9e3779b9, mode) != o.nan {
					t.Fatalf("%s: NaN %#08x gives %#x and %#x", d, bits, d.Nearest(x, mode), d.Stochastic(x, 0, mode))
				}
				continue
			}
			if got, want := d.Nearest(x, mode), o.signed(o.nearest(magnitude, code, mode), negative); got != want {
				t.Fatalf("%s: nearest, overflow %d: %v (%#08x) gives %#x, want %#x", d, mode, x, math.Float32bits(x), got, want)
			}
			for _, random := range [2]uint64{first - 1, first} { // the last that rounds down, the first that rounds up
				if random > math.MaxUint32 {
					continue
				}
				want := code
				if random >= first {
					want++
				}
				want = o.signed(o.limit(want, mode), negative)
				if got := d.Stochastic(x, uint32(random), mode); got != want {
					t.Fatalf("%s: stochastic, overflow %d: %v (%#08x) with %#x gives %#x, want %#x",
						d, mode, x, math.Float32bits(x), random, got, want)
				}
			}
		}
	}
}

// castInputs returns the bits of the magnitudes to test casts to o with: every
// value and every midpoint with their float32 neighbors, and 2^16 patterns over
// the whole range.
func castInputs(o *oracle) []uint32 {
	var inputs []uint32
	around := func(v float64) {
		b := math.Float32bits(float32(v))
		inputs = append(inputs, b-1, b, b+1)
	}
	around(math.SmallestNonzeroFloat32)
	for i, v := range o.values[1:] {
		around(v)
		around((v + o.values[i]) / 2)
	}
	for high := range uint32(1 << 15) {
		inputs = append(inputs, high<<16, high<<16|randomWord(1, uint64(high))>>16)
	}
	for i, b := range inputs { // float32(2^128) is infinity, and the next pattern is NaN
		inputs[i] = b &^ (1 << 31)
	}
	return inputs
}

func TestScalarsMatchOracle(t *testing.T) {
	for _, d := range castFormats {
		o := newOracle(d)
		for _, bits := range castInputs(o) {
			var code uint32
			if bits <= 0x7f800000 {
				code = min(o.below(float64(math.Float32frombits(bits))), o.overflow)
			}
			o.check(t, d, bits, code)
		}
	}
}

func TestFloat32MatchesOracle(t *testing.T) {
	for _, d := range castFormats {
		o := newOracle(d)
		require.Equal(t, float64(d.Max()), o.values[o.overflow-1], d)
		for magnitude := range o.sign {
			for _, negative := range []bool{false, true} {
				code := o.signed(magnitude, negative)
				got := d.Float32(code)
				switch {
				case magnitude < o.overflow:
					require.Equal(t, o.values[magnitude], math.Abs(float64(got)), "%s %#x", d, code)
					require.Equal(t, negative && code != 0, math.Signbit(float64(got)), "%s %#x", d, code)
				case magnitude == o.beyond && o.nan != o.beyond:
					sign := 1
					if negative {
						sign = -1
					}
					require.True(t, math.IsInf(float64(got), sign), "%s %#x", d, code)
				default:
					require.True(t, math.IsNaN(float64(got)), "%s %#x", d, code)
				}
				if d.Format().Bits <= 8 {
					require.Equal(t, math.Float32bits(got), math.Float32bits(d.Table()[code]))
				}
			}
		}
		if o.noSigned {
			require.True(t, math.IsNaN(float64(d.Float32(o.sign))), d)
		}
	}
	require.Equal(t, float32(-128), INT8.Float32(0x80), "no cast gives this code")
	require.Equal(t, float32(-8), INT4.Float32(8))
}

// everyFloat32 runs f over the bits of all non-negative float32, in parallel
// chunks.
func everyFloat32(t *testing.T, f func(t *testing.T, d DType, first, n uint32)) {
	if os.Getenv("OCTET_LONG") == "" {
		t.Skip("set OCTET_LONG=1 to cast all 2^32 patterns (some ten minutes of CPU: add -timeout 1h)")
	}
	const chunks, size = 32, 1 << 31 / 32
	for _, d := range fp8Formats {
		for chunk := range uint32(chunks) {
			t.Run(fmt.Sprint(d, " ", chunk), func(t *testing.T) {
				t.Parallel()
				f(t, d, chunk*size, size)
				t.Logf("%#08x to %#08x, both signs", chunk*size, chunk*size+size-1)
			})
		}
	}
}

// TestEveryFloat32 casts every float32 to every FP8 format. Inputs ascend, so the
// oracle's code only increases.
func TestEveryFloat32(t *testing.T) {
	everyFloat32(t, func(t *testing.T, d DType, first, n uint32) {
		o, code := newOracle(d), uint32(0)
		for bits := first; bits-first < n; bits++ {
			x := float64(math.Float32frombits(bits))
			for code < o.overflow && x >= o.values[code+1] {
				code++
			}
			o.check(t, d, bits, code)
		}
	})
}

// TestEveryFloat32InSlices compares the slice casts with the scalar casts, which
// TestEveryFloat32 compares with exact arithmetic.
func TestEveryFloat32InSlices(t *testing.T) {
	everyFloat32(t, func(t *testing.T, d DType, first, n uint32) {
		const block = 2048
		src, nearest, stochastic := make([]float32, block), make([]uint8, block), make([]uint8, block)
		for bits := first; bits-first < n; bits += block / 2 {
			for i := range src {
				src[i] = math.Float32frombits(bits + uint32(i/2) | uint32(i)<<31)
			}
			Quantize8(nearest, src, d, 1, false)
			Quantize8Stochastic(stochastic, src, d, 1, 1, uint64(bits), false)
			for i, x := range src {
				random := Random(1, uint64(bits)+uint64(i))
				if uint32(nearest[i]) != d.Nearest(x, Saturate) || uint32(stochastic[i]) != d.Stochastic(x, random, Saturate) {
					t.Fatalf("%s: %v (%#08x) gives %#x and %#x", d, x, math.Float32bits(x), nearest[i], stochastic[i])
				}
			}
		}
	})
}
