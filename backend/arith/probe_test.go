package arith

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/fp8"
)

// probe is a hand-made dot product whose result distinguishes two arithmetics.
type probe struct {
	model, id string
	k         int    // 32 if 0
	products  string // in the syntax of the function products
	e5m2      bool   // both operands are E5M2; otherwise the model's E4M3
	c         float32
	scaleA    []int // exponents of block scales
	scaleB    []int
	want      float64
	rulesOut  string
	// change turns the model into the one that rulesOut names, where a Model can express
	// it; otherwise is the result of the changed model.
	change    func(*Model)
	otherwise float64
}

// products parses a sparse dot product of length k: "0: 1*1, 32-35: 0.125*1p-3".
func products(t *testing.T, k int, d fp8.DType, text string) (a, b Operand) {
	a, b = Operand{Codes: make([]uint8, k), DType: d}, Operand{Codes: make([]uint8, k), DType: d}
	code := func(value string) uint8 {
		mantissa, exponent, power := strings.Cut(value, "p")
		x, err := strconv.ParseFloat(mantissa, 64)
		require.NoError(t, err)
		if power {
			e, err := strconv.Atoi(exponent)
			require.NoError(t, err)
			x = math.Ldexp(x, e)
		}
		c := uint8(d.Nearest(float32(x), fp8.NonSaturating))
		require.Equal(t, fmt.Sprint(float32(x)), fmt.Sprint(d.Float32(uint32(c))), value)
		return c
	}
	for part := range strings.SplitSeq(text, ", ") {
		if part == "" {
			continue
		}
		where, what, ok := strings.Cut(part, ": ")
		require.True(t, ok, part)
		x, y, _ := strings.Cut(what, "*")
		from, to, many := strings.Cut(where, "-")
		first, err := strconv.Atoi(from)
		require.NoError(t, err)
		last := first
		if many {
			last, err = strconv.Atoi(to)
			require.NoError(t, err)
		}
		for i := first; i <= last; i++ {
			a.Codes[i], b.Codes[i] = code(x), code(y)
		}
	}
	return a, b
}

func scaleCodes(exponents []int) (codes []uint8) {
	for _, e := range exponents {
		codes = append(codes, uint8(127+e))
	}
	return codes
}

// answer computes the probe with m: a promoted dot product, or one fused sum if the
// probe has an addend.
func (p *probe) answer(t *testing.T, m *Model) float32 {
	d := m.E4M3
	if p.e5m2 {
		d = fp8.E5M2
	}
	k := p.k
	if k == 0 {
		k = 32
	}
	a, b := products(t, k, d, p.products)
	a.Scales, b.Scales = scaleCodes(p.scaleA), scaleCodes(p.scaleB)
	if p.c == 0 && !math.Signbit(float64(p.c)) {
		return m.Dot(a, b, true)
	}
	var x, y []float32
	for i := range m.Sum.Group {
		x, y = append(x, d.Float32(uint32(a.Codes[i]))), append(y, d.Float32(uint32(b.Codes[i])))
	}
	return m.Sum.Fuse(x, y, m.Sum.MinPower(d), m.Sum.MinPower(d), float64(a.scale(0))*float64(b.scale(0)), p.c)
}

func group(n int) func(*Model)   { return func(m *Model) { m.Sum.Group = n } }
func aligned(n int) func(*Model) { return func(m *Model) { m.Sum.Bits = n } }
func kept(n int) func(*Model)    { return func(m *Model) { m.Sum.Kept = n } }
func minExp(e4m3, e5m2 int) func(*Model) {
	return func(m *Model) { m.Sum.MinExpE4M3, m.Sum.MinExpE5M2 = e4m3, e5m2 }
}
func addendLast(m *Model)    { m.Sum.AddendLast = true }
func addendAligned(m *Model) { m.Sum.AddendLast = false }
func scalesOutside(m *Model) { m.Sum.MX = false }
func fast(m *Model)          { m.Promote = 0 }

func TestProbes(t *testing.T) {
	for _, p := range probes {
		t.Run(p.model+" "+p.id+" not "+p.rulesOut, func(t *testing.T) {
			m, err := Lookup(p.model)
			require.NoError(t, err)
			requireNumber(t, p.want, p.answer(t, &m))
			if p.change != nil {
				p.change(&m)
				requireNumber(t, p.otherwise, p.answer(t, &m))
				require.NotEqual(t, p.want, p.otherwise, "the probe does not distinguish the two")
			}
		})
	}
}

// requireNumber compares bits: -0 is not 0.
func requireNumber(t *testing.T, want float64, got float32) {
	t.Helper()
	bits := math.Float32bits(float32(want))
	if math.IsNaN(want) {
		bits = 0x7fffffff
	}
	require.Equal(t, bits, math.Float32bits(got), "%v, expected %v", got, want)
}

var (
	inf       = math.Inf(1)
	nan       = math.NaN()
	minusZero = float32(math.Copysign(0, -1))
)

const tiny = 0x1p-130 // subnormal in FP32

// One probe for each property of each model. Models share no probes, so that each can
// change alone.
var probes = []probe{
	// Hopper: 32 products and the addend, 13 bits.
	{model: "h100", id: "P1", products: "0: 1*1, 1: 1p-6*1p-7", want: 1 + 0x1p-13, rulesOut: "fewer than 13 fraction bits", change: aligned(12), otherwise: 1},
	{
		model: "h100", id: "P1'", products: "0: 1*1, 1: 1p-7*1p-7", want: 1, rulesOut: "more than 13",
		change: func(m *Model) { m.Sum.Bits, m.Sum.Kept = 14, 14 }, otherwise: 1 + 0x1p-14,
	},
	{model: "h100", id: "N1", products: "0: -1*1, 1: -1p-7*1p-7", want: -1, rulesOut: "rounding down: -1.00012"},
	{model: "h100", id: "P2", products: "0: 1*1, 1-31: 1p-7*1p-7", want: 1, rulesOut: "a sum before truncation: 1.00189"},
	{model: "h100", id: "P3b", products: "0: 1.75*1.75, 1-2: 1p-6*1p-7", want: 3.0625 + 0x1p-12, rulesOut: "products normalized first: 3.0625"},
	{model: "h100", id: "P4", products: "0: 1*1, 1: 1*1, 2: 1p-6*1p-7", want: 2, rulesOut: "results with more than 13 fraction bits", change: kept(23), otherwise: 2 + 0x1p-13},
	{model: "h100", id: "P4'", products: "0: 1*1, 1: 1p-6*1p-7", want: 1 + 0x1p-13, rulesOut: "results with fewer", change: kept(12), otherwise: 1},
	{model: "h100", id: "P6c", products: "0: 1p-9*256, 1: 1p-6*1p-7", want: 0.5, rulesOut: "normalized subnormal operands", change: minExp(-9, -16), otherwise: 0.5 + 0x1p-13},
	{
		model: "h100", id: "P6d", e5m2: true, products: "0: 1p-16*16384, 1: 1p-7*1p-8", want: 0.25, rulesOut: "the same in E5M2",
		change: minExp(-9, -16), otherwise: 0.25 + 0x1p-15,
	},
	{model: "h100", id: "P7", products: "0: 1*1, 1: -1*1, 16: 1p-7*1p-7", want: 0, rulesOut: "groups of 16", change: group(16), otherwise: 0x1p-14},
	{model: "h100", id: "O3", products: "0: 256*1, 1: -256*1, 2: 1p-6*1", want: 0, rulesOut: "groups of two", change: group(2), otherwise: 0x1p-6},
	{model: "h100", id: "O3", products: "0: 256*1, 1: -256*1, 31: 1p-6*1", want: 0, rulesOut: "groups of fewer than 32", change: group(31), otherwise: 0x1p-6},
	{model: "h100", id: "O3", k: 64, products: "0: 256*1, 1: -256*1, 32: 1p-6*1", want: 0x1p-6, rulesOut: "groups of more than 32", change: group(33), otherwise: 0},
	{model: "h100", id: "C1", c: 1 + 0x1p-13 + 0x1p-14, want: 1 + 0x1p-13, rulesOut: "an FP32 addend", change: addendLast, otherwise: 1 + 0x1p-13 + 0x1p-14},
	{model: "h100", id: "C2", products: "0: 1p-6*1p-7", c: 1, want: 1 + 0x1p-13, rulesOut: "an addend with fewer bits than products", change: aligned(12), otherwise: 1},
	{model: "h100", id: "C3", products: "0: 1*1", c: 0x1p-14, want: 1, rulesOut: "an addend with more bits", change: func(m *Model) { m.Sum.Bits, m.Sum.Kept = 14, 14 }, otherwise: 1 + 0x1p-14},
	{model: "h100,fast", id: "P5", k: 64, products: "0: 1*1, 32-35: 1p-7*1p-7", want: 1, rulesOut: "an addend added after truncation", change: addendLast, otherwise: 1 + 0x1p-12},
	{model: "h100,fast", id: "O1", k: 64, products: "0: 256*1, 1: -256*1, 32: 1p-6*1", want: 0x1p-6, rulesOut: "k descending: 0"},
	{model: "h100,fast", id: "O2", k: 64, products: "32: 256*1, 33: -256*1, 0: 1p-6*1", want: 0, rulesOut: "k descending: 0.0156"},
	{model: "h100,fast", id: "G1", k: 16384, products: "0-16383: 1.125*1.125", want: 16410, rulesOut: "an FP32 accumulator", change: addendLast, otherwise: 20736},
	{model: "h100", id: "G1", k: 16384, products: "0-16383: 1.125*1.125", want: 20736, rulesOut: "no promotion", change: fast, otherwise: 16410},
	{model: "h100,fast", id: "G2", k: 65536, products: "0-65535: 1*0.125", want: 2048, rulesOut: "an FP32 accumulator", change: addendLast, otherwise: 8192},
	{model: "h100", id: "G2", k: 65536, products: "0-65535: 1*0.125", want: 8192, rulesOut: "no promotion", change: fast, otherwise: 2048},
	{model: "h100", id: "Z1", products: "0-31: -0*1", want: 0, rulesOut: "a negative zero"},
	{model: "h100", id: "Z2", products: "0-31: -0*1", c: minusZero, want: 0, rulesOut: "a negative zero"},
	{model: "h100", id: "Z3", products: "0: 1*1, 1: -1*1", want: 0, rulesOut: "the sign of the last term"},
	{model: "h100", id: "U1", c: tiny, want: tiny, rulesOut: "FP32 subnormals flushed to zero", change: addendLast, otherwise: 0},
	{model: "h100", id: "S1", e5m2: true, products: "0: inf*1, 1: 57344*-57344", want: inf, rulesOut: "a finite sum with an infinity"},
	{model: "h100", id: "S2", e5m2: true, products: "0: inf*1, 1: inf*-1", want: nan, rulesOut: "the first infinity"},
	{model: "h100", id: "S3", e5m2: true, products: "0: inf*0", want: nan, rulesOut: "zero for a product with NaN or infinity"},
	{model: "h100", id: "S4", products: "0: nan*0, 1: 1*1", want: nan, rulesOut: "zero for a product with NaN or infinity"},
	{model: "h100", id: "S5", e5m2: true, products: "3: inf*1", c: float32(-inf), want: nan, rulesOut: "the addend's infinity"},
	{model: "h100", id: "S6", products: "3: -448*448", c: float32(inf), want: inf, rulesOut: "a truncated infinite addend"},

	// Ada: 16 products and the addend, 13 bits.
	{model: "ada", id: "P1", products: "0: 1*1, 1: 1p-6*1p-7", want: 1 + 0x1p-13, rulesOut: "fewer than 13 fraction bits", change: aligned(12), otherwise: 1},
	{
		model: "ada", id: "P1'", products: "0: 1*1, 1: 1p-7*1p-7", want: 1, rulesOut: "more than 13",
		change: func(m *Model) { m.Sum.Bits, m.Sum.Kept = 14, 14 }, otherwise: 1 + 0x1p-14,
	},
	{model: "ada", id: "N1", products: "0: -1*1, 1: -1p-7*1p-7", want: -1, rulesOut: "rounding down: -1.00012"},
	{model: "ada", id: "P4", products: "16: 1*1, 17: 1*1, 18: 1p-6*1p-7", want: 2, rulesOut: "results with more than 13 fraction bits", change: kept(23), otherwise: 2 + 0x1p-13},
	{model: "ada", id: "P6c", products: "0: 1p-9*256, 1: 1p-6*1p-7", want: 0.5, rulesOut: "normalized subnormal operands", change: minExp(-9, -16), otherwise: 0.5 + 0x1p-13},
	{model: "ada", id: "P7", products: "0: 1*1, 1: -1*1, 16: 1p-7*1p-7", want: 0x1p-14, rulesOut: "groups of 32", change: group(32), otherwise: 0},
	{model: "ada", id: "O3", products: "0: 256*1, 1: -256*1, 15: 1p-6*1", want: 0, rulesOut: "groups of fewer than 16", change: group(15), otherwise: 0x1p-6},
	{model: "ada", id: "C1", c: 1 + 0x1p-13 + 0x1p-14, want: 1 + 0x1p-13, rulesOut: "an FP32 addend", change: addendLast, otherwise: 1 + 0x1p-13 + 0x1p-14},
	{model: "ada,fast", id: "P5", k: 64, products: "0: 1*1, 32-35: 1p-7*1p-7", want: 1, rulesOut: "an addend added after truncation", change: addendLast, otherwise: 1 + 0x1p-12},
	{model: "ada", id: "G2", k: 65536, products: "0-65535: 1*0.125", want: 8192, rulesOut: "no promotion", change: fast, otherwise: 2048},
	{model: "ada,fast", id: "O1", products: "0: 256*1, 1: -256*1, 16: 1p-6*1", want: 0x1p-6, rulesOut: "k descending: 0"},
	{model: "ada,fast", id: "O2", products: "16: 256*1, 17: -256*1, 0: 1p-6*1", want: 0, rulesOut: "k descending: 0.0156"},
	{model: "ada", id: "U1", c: tiny, want: tiny, rulesOut: "FP32 subnormals flushed to zero", change: addendLast, otherwise: 0},

	// Blackwell: 32 products and the addend, 25 bits, and FP32 results.
	{
		model: "b200", id: "25 bits", e5m2: true, products: "0: 1*1, 1-2: 1p-12*1p-13, 3: -1*1", want: 0x1p-24, rulesOut: "fewer than 25 fraction bits",
		change: aligned(24), otherwise: 0,
	},
	{model: "b200", id: "26 bits", e5m2: true, products: "0: 1*1, 1: 1p-13*1p-13, 2: -1*1", want: 0, rulesOut: "more than 25", change: aligned(26), otherwise: 0x1p-26},
	{model: "b200", id: "E4M3", products: "0: 256*1, 1: -256*1, 2: 1p-8*1p-9", want: 0x1p-17, rulesOut: "fewer than 25 fraction bits", change: aligned(24), otherwise: 0},
	{model: "b200", id: "toward zero", products: "0: 1.875*1", c: 2 - 0x1p-23, want: 3.875 - 0x1p-22, rulesOut: "rounding to nearest", change: addendLast, otherwise: 3.875},
	{model: "b200", id: "FP32", products: "0: 128*1, 1: 1p-8*1p-8", want: 128 + 0x1p-16, rulesOut: "results of fewer than 23 fraction bits", change: kept(22), otherwise: 128},
	{model: "b200", id: "groups", products: "0: 256*1, 1: -256*1, 31: 1p-9*1p-9", want: 0, rulesOut: "groups of fewer than 32", change: group(31), otherwise: 0x1p-18},
	{model: "b200", id: "groups", k: 64, products: "0: 256*1, 1: -256*1, 32: 1p-9*1p-9", want: 0x1p-18, rulesOut: "groups of more than 32", change: group(33), otherwise: 0},
	{model: "b200", id: "addend", e5m2: true, products: "0: 1*1, 1: -1*1", c: 0x1p-26, want: 0, rulesOut: "an addend with more bits", change: aligned(26), otherwise: 0x1p-26},
	{model: "b200", id: "N1", e5m2: true, products: "0: -1*1, 1: 1*1, 2: -1p-13*1p-13", want: 0, rulesOut: "rounding down: -2^-25"},
	{model: "b200", id: "O2", k: 64, products: "32: 256*1, 33: -256*1, 0: 1p-9*1p-9", want: 0, rulesOut: "k descending: 2^-18"},
	{model: "b200", id: "U1", c: tiny, want: tiny, rulesOut: "FP32 subnormals flushed to zero", change: addendLast, otherwise: 0},
	{model: "b200", id: "Z1", products: "0-31: -0*1", c: minusZero, want: 0, rulesOut: "a negative zero"},

	// Blackwell adds the exponents of block scales to the products' before it takes the
	// maximum. Without MX, a block's sum is truncated as if it had no scales.
	{model: "b200", id: "MX", k: 64, products: "3: 1.5*1.5, 35: 1*1", scaleA: []int{3, 0}, scaleB: []int{0, 0}, want: 19, rulesOut: "scales applied twice or never"},
	{model: "b200", id: "MX", k: 64, products: "3: 1.5*1.5, 35: 1*1", scaleA: []int{0, 0}, scaleB: []int{0, -2}, want: 2.5, rulesOut: "scales of A alone"},
	{
		model: "b200", id: "MX addend", k: 64, products: "0: 1*1, 32: 1.125*1.125", scaleA: []int{0, -10}, scaleB: []int{0, -10}, want: 1 + 1.25*0x1p-20,
		rulesOut: "truncation before the scales: the addend keeps all bits", change: aligned(21), otherwise: 1 + 0x1p-20,
	},
	{
		model: "b200", id: "MX toward zero", k: 64, products: "0: 1*1, 32: 1.75*1.75", scaleA: []int{0, -12}, scaleB: []int{0, -12}, want: 1 + 0x1p-23,
		rulesOut: "block sums added in FP32, to nearest", change: scalesOutside, otherwise: 1 + 0x1p-22,
	},
	{model: "b200", id: "MX last scale", k: 40, products: "39: 1*1", scaleA: []int{1, 2}, scaleB: []int{4, 8}, want: 1024, rulesOut: "the scales of another block"},
	{model: "b200", id: "MX lost", k: 64, products: "3: 1.5*1.5, 35: 1*1", scaleA: []int{-127, 0}, scaleB: []int{-127, 0}, want: 1, rulesOut: "an error from a negligible block"},
	{model: "b200", id: "MX underflow", k: 64, products: "3: 1.5*1.5", scaleA: []int{-63, -127}, scaleB: []int{-86, -127}, want: 0x1p-148, rulesOut: "subnormal results rounded to nearest or flushed to zero"},
	{model: "b200", id: "MX underflow", products: "0: -1.5*1.25", scaleA: []int{-22}, scaleB: []int{-127}, want: -0x1p-149, rulesOut: "rounding away from zero"},
	{model: "b200", id: "MX underflow", products: "0: -1.5*1.25", scaleA: []int{-23}, scaleB: []int{-127}, want: 0, rulesOut: "a negative zero"},
	{model: "b200", id: "MX floor", products: "0: 1*1, 1: 1*1", scaleA: []int{-25}, scaleB: []int{-126}, want: 0, rulesOut: "a result rounded up"},
	{model: "b200", id: "MX floor", products: "0-7: 1*1", scaleA: []int{-26}, scaleB: []int{-126}, want: 0, rulesOut: "an addend of 0 without an exponent: 2^-149"},
	{model: "b200", id: "MX overflow", products: "0: 1*1", scaleA: []int{127}, scaleB: []int{127}, want: inf, rulesOut: "saturation"},
	{model: "b200", id: "MX overflow", products: "0: 1*1, 1: -1*1", scaleA: []int{127}, scaleB: []int{127}, want: 0, rulesOut: "overflow of single products"},
	{model: "b200", id: "MX NaN", k: 64, products: "0: 1*1", scaleA: []int{0, 128}, scaleB: []int{0, 0}, want: nan, rulesOut: "2^128 for the NaN code"},
	{model: "h100", id: "MX", k: 64, products: "3: 1.5*1.5, 35: 1*1", scaleA: []int{3, 0}, scaleB: []int{0, -1}, want: 18.5, rulesOut: "no scales"},
	{
		model: "h100,fast", id: "MX", k: 64, products: "0: 1*1, 32: 1p-7*1p-7", scaleA: []int{0, 0}, scaleB: []int{0, 0}, want: 1 + 0x1p-14,
		rulesOut: "scales inside", change: func(m *Model) { m.Sum.MX = true }, otherwise: 1,
	},

	// Gaudi2: 16 products; the addend is added last.
	{model: "gaudi2", id: "groups", products: "0: 128*128, 1: -128*128, 15: 1p-9*1p-9", want: 0, rulesOut: "smaller groups", change: group(15), otherwise: 0x1p-18},
	{model: "gaudi2", id: "groups", products: "0: 128*128, 1: -128*128, 16: 1p-9*1p-9", want: 0x1p-18, rulesOut: "groups of more than 16", change: group(17), otherwise: 0},
	{model: "gaudi2", id: "24 bits", e5m2: true, products: "0: 1*1, 1: 1p-12*1p-12, 2: -1*1", want: 0x1p-24, rulesOut: "fewer than 24 fraction bits", change: aligned(23), otherwise: 0},
	{model: "gaudi2", id: "25 bits", e5m2: true, products: "0: 1*1, 1: 1p-12*1p-13, 2: -1*1", want: 0, rulesOut: "more than 24", change: aligned(25), otherwise: 0x1p-25},
	{model: "gaudi2", id: "nearest", products: "0-15: 128*128, 16: 1*0.01171875", want: 16*16384 + 0.015625, rulesOut: "a truncated addend", change: addendAligned, otherwise: 16 * 16384},
	{
		model: "gaudi2", id: "addend", e5m2: true, products: "0-1: 1.5p-12*1p-13", c: 1, want: 1 + 0x1p-23, rulesOut: "an aligned addend",
		change: addendAligned, otherwise: 1,
	},
	{model: "gaudi2", id: "tie", e5m2: true, products: "0: 1p-12*1p-12", c: 1, want: 1, rulesOut: "a tie away from even: 1.00000012"},
	{model: "gaudi2", id: "tie", e5m2: true, products: "0: 1p-12*1p-12", c: 1 + 0x1p-23, want: 1 + 0x1p-22, rulesOut: "a tie toward zero: 1.00000012"},
	{model: "gaudi2", id: "no tie", e5m2: true, products: "0: 1*1, 1: 1p-12*1p-12", c: 0x1p-80, want: 1 + 0x1p-23, rulesOut: "two roundings: 1"},
	{model: "gaudi2", id: "a subnormal addend", e5m2: true, products: "0: 1*1, 1: 1p-12*1p-12", c: tiny, want: 1, rulesOut: "a tie decided by it: 1.00000012"},
	{model: "gaudi2", id: "N1", e5m2: true, products: "0: -1*1, 1: 1*1, 2: -1p-12*1p-13", want: 0, rulesOut: "rounding down: -2^-24"},
	{model: "gaudi2", id: "order", k: 48, products: "0: 128*128, 16: 1p-5*1p-5, 32: 1p-5*1p-5", want: 16384, rulesOut: "k descending: 16384.002"},
	{model: "gaudi2", id: "U1", c: tiny, want: 0, rulesOut: "FP32 subnormals", change: addendAligned, otherwise: tiny},
	{model: "gaudi2", id: "P6", e5m2: true, products: "0: 1p-16*1p15, 1: 1p-12*1p-12", want: 0.5, rulesOut: "normalized subnormals", change: minExp(-9, -16), otherwise: 0.5 + 0x1p-24},
	{model: "gaudi2", id: "Z1", products: "0-31: -0*1", c: minusZero, want: 0, rulesOut: "a negative zero"},
	{model: "gaudi2", id: "E4M3", products: "0: 240*1", want: 240, rulesOut: "infinity"},
	{model: "gaudi2", id: "E4M3", products: "0: inf*1", want: inf, rulesOut: "values above 240"},
	{model: "gaudi2", id: "S2", e5m2: true, products: "0: inf*1, 1: inf*-1", want: nan, rulesOut: "the first infinity"},

	// Gaudi3: 8 products and the addend.
	{model: "gaudi3", id: "groups", k: 16, products: "0: 128*128, 1: -128*128, 7: 1p-9*1p-9", want: 0, rulesOut: "smaller groups", change: group(7), otherwise: 0x1p-18},
	{model: "gaudi3", id: "groups", k: 16, products: "0: 128*128, 1: -128*128, 8: 1p-9*1p-9", want: 0x1p-18, rulesOut: "groups of more than 8", change: group(9), otherwise: 0},
	{model: "gaudi3", id: "24 bits", e5m2: true, products: "0: 1*1, 1: 1p-12*1p-12, 2: -1*1", want: 0x1p-24, rulesOut: "fewer than 24 fraction bits", change: aligned(23), otherwise: 0},
	{model: "gaudi3", id: "25 bits", e5m2: true, products: "0: 1*1, 1: 1p-12*1p-13, 2: -1*1", want: 0, rulesOut: "more than 24", change: aligned(25), otherwise: 0x1p-25},
	{model: "gaudi3", id: "toward zero", k: 16, products: "0-7: 128*128, 8: 1*0.01171875", want: 8*16384 + 0.0078125, rulesOut: "rounding to nearest", change: addendLast, otherwise: 8*16384 + 0.015625},
	{
		model: "gaudi3", id: "addend", e5m2: true, products: "0-1: 1.5p-12*1p-13", c: 1, want: 1, rulesOut: "an addend added last",
		change: addendLast, otherwise: 1 + 0x1p-23,
	},
	{model: "gaudi3", id: "P6", e5m2: true, products: "0: 1p-16*1p15, 1: 1p-12*1p-12", want: 0.5 + 0x1p-24, rulesOut: "subnormals that are not normalized", change: minExp(-6, -14), otherwise: 0.5},
	{model: "gaudi3", id: "N1", e5m2: true, products: "0: -1*1, 1: 1*1, 2: -1p-12*1p-13", want: 0, rulesOut: "rounding down: -2^-24"},
	{model: "gaudi3", id: "O2", products: "8: 128*128, 9: -128*128, 0: 1p-9*1p-9", want: 0, rulesOut: "k descending: 2^-18"},
	{model: "gaudi3", id: "U1", c: tiny, want: tiny, rulesOut: "FP32 subnormals flushed to zero", change: addendLast, otherwise: 0},
	{model: "gaudi3", id: "Z1", products: "0-31: -0*1", c: minusZero, want: 0, rulesOut: "a negative zero"},
	{model: "gaudi3", id: "S2", e5m2: true, products: "0: inf*1, 1: inf*-1", want: nan, rulesOut: "the first infinity"},
	{model: "gaudi3", id: "E4M3", products: "0: 448*1", want: 448, rulesOut: "infinities"},
	{model: "gaudi3,e4m3=240", id: "E4M3", products: "0: inf*1", want: inf, rulesOut: "values above 240"},
}

// A small product survives only in a later promotion interval than the large one.
func TestPromotionInterval(t *testing.T) {
	for model, interval := range map[string]int{
		"h100": 128, "h100,promote=64": 64, "ada": 128, "ada,promote=48": 48, "h100,fast": 1024, "ada,fast": 1024,
	} {
		m, err := Lookup(model)
		require.NoError(t, err)
		for p := 32; p < 1024; p += 31 {
			a, b := products(t, 1024, fp8.E4M3, fmt.Sprintf("0: 1*1, %d: 1p-7*1p-7", p))
			want := float32(1)
			if p >= interval {
				want = 1 + 0x1p-14
			}
			require.Equal(t, want, m.Dot(a, b, true), "%s %d", model, p)
			require.Equal(t, float32(1), m.Dot(a, b, false), "%s %d, fast", model, p)
		}
	}
}

func TestNearestSum(t *testing.T) {
	for _, c := range []struct{ x, y, want float64 }{
		{1, 0x1p-24, 1},                     // a tie
		{1 + 0x1p-24, 0x1p-80, 1 + 0x1p-23}, // no tie, though the float64 sum is one
		{1 + 0x1p-24, -0x1p-80, 1},
		{-1 - 0x1p-24, -0x1p-80, -1 - 0x1p-23},
		{-0x1p-80, -1, -1},
		{1.5, -1.5, 0},
		{0x1p-127, 0, 0},
	} {
		requireNumber(t, c.want, nearestSum(c.x, c.y))
	}
}

func TestSpecials(t *testing.T) {
	const one, inf, negInf, nan, zero = 0x3c, 0x7c, 0xfc, 0x7e, 0
	infinity := float32(math.Inf(1))
	for _, m := range Models() {
		for _, promoted := range []bool{false, true} {
			// One pair of codes in each of three promotion intervals.
			dot := func(codes ...uint8) float32 {
				a, b := make([]uint8, 400), make([]uint8, 400)
				for i := 0; i < len(codes); i += 2 {
					a[80*i], b[80*i] = codes[i], codes[i+1]
				}
				return m.Dot(Operand{Codes: a, DType: fp8.E5M2}, Operand{Codes: b, DType: fp8.E5M2}, promoted)
			}
			require.Equal(t, infinity, dot(inf, one), m.Name)
			require.Equal(t, -infinity, dot(negInf, one, one, one), m.Name)
			for _, x := range []float32{
				dot(inf, zero), dot(zero, negInf), dot(nan, one), dot(one, nan|0x80),
				dot(inf, one, negInf, one), dot(negInf, one, one, one, inf, one), dot(inf, one, nan, zero), dot(nan, nan, inf, one),
			} {
				require.Equal(t, uint32(0x7fffffff), math.Float32bits(x), "%s, promoted %v", m.Name, promoted)
			}
		}
	}
}

// Sums multiplied by block scales in FP32 give the canonical NaN too, not the host's.
func TestSpecialBlockScales(t *testing.T) {
	const one, inf, nan = 0x3c, 0x7c, 255
	for _, m := range Models() {
		for _, promoted := range []bool{false, true} {
			for _, c := range []struct{ code, scale uint8 }{{one, nan}, {inf, nan}} {
				a, b := make([]uint8, 96), make([]uint8, 96)
				a[40], b[40] = c.code, one
				x := Operand{Codes: a, DType: fp8.E5M2, Scales: []uint8{127, c.scale, 127}}
				for _, y := range []Operand{{Codes: b, DType: fp8.E5M2}, {Codes: b, DType: fp8.E5M2, Scales: []uint8{127, 127, 127}}} {
					require.Equal(t, uint32(0x7fffffff), math.Float32bits(m.Dot(x, y, promoted)), "%s, promoted %v", m.Name, promoted)
				}
			}
		}
	}
}
