package arith

import (
	"math"
	"math/big"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/fp8"
)

// scaled returns an operand with block scales. Its codes are those of the values, repeated
// to n.
func scaled(d fp8.DType, n int, scale fp8.DType, along int, scales []float32, values ...float32) Operand {
	o := Operand{DType: d, Along: along, Scale: scale}
	for i := range n {
		o.Codes = append(o.Codes, uint8(d.Nearest(values[i%len(values)], fp8.Saturate)))
	}
	for _, s := range scales {
		o.Scales = append(o.Scales, uint8(scale.Nearest(s, fp8.Saturate)))
	}
	return o
}

// sparse returns n values, 0 but for those given by their index.
func sparse(n int, at map[int]float32) []float32 {
	list := make([]float32, n)
	for i, x := range at {
		list[i] = x
	}
	return list
}

// Sums of mxf4nvf4 by hand: four exact sums of 16 products, aligned with the exponents of
// their scales, and the addend.
func TestNVFP4ByHand(t *testing.T) {
	m, err := Lookup("b200")
	require.NoError(t, err)
	ones := []float32{1, 1, 1, 1}
	nv := func(scales []float32, values ...float32) Operand {
		return scaled(fp8.E2M1, len(values), fp8.E4M3, 16, scales, values...)
	}
	nan := nv(ones, sparse(64, nil)...)
	nan.Scales[3] = 0x7f
	for _, c := range []struct {
		name string
		a, b Operand
		want float32
	}{
		{"exact sums", nv(ones, sparse(64, map[int]float32{0: 6, 1: .5, 17: 3})...), nv(ones, sparse(64, map[int]float32{0: 6, 1: .5, 17: -2})...), 30.25},
		{
			"scales multiply each sum",
			nv([]float32{2, 3, 4, .5}, sparse(64, map[int]float32{0: 1, 16: 1, 32: 1, 48: 1})...),
			nv([]float32{2, 1, 4, .25}, sparse(64, map[int]float32{0: 1, 16: 1, 32: 1, 48: 1})...), 4 + 3 + 16 + .125,
		},
		{ // 576·448² = 115605504 has units of 8 in FP32
			"the result is rounded toward zero",
			nv([]float32{448, 1, 1, 1}, append(sparse(16, map[int]float32{}), sparse(48, map[int]float32{0: -.5})...)...),
			nv([]float32{448, 1, 1, 1}, append(sparse(16, map[int]float32{}), sparse(48, map[int]float32{0: .5})...)...), -.25,
		},
		{ // 2^-9·2^-9·0.5·0.5 = 2^-20, then 64 zeros with scales of 448, whose unit is 2^(16-35)
			"a zero sum enters the maximum",
			nv([]float32{0x1p-9, 1, 1, 1, 448, 448, 448, 448}, sparse(128, map[int]float32{0: .5})...),
			nv([]float32{0x1p-9, 1, 1, 1, 448, 448, 448, 448}, sparse(128, map[int]float32{0: .5})...), 0,
		},
		{
			"a scale of 0 does not",
			nv([]float32{0x1p-9, 1, 1, 1, 0, 0, 0, 0}, sparse(128, map[int]float32{0: .5})...),
			nv([]float32{0x1p-9, 1, 1, 1, 448, 448, 448, 448}, sparse(128, map[int]float32{0: .5})...), 0x1p-20,
		},
		{"NaN scale", nan, nv(ones, sparse(64, nil)...), canonicalNaN},
		{ // one scale for two exact sums; 2^10·2^-3·(36 - 1.5)
			"MXFP4", scaled(fp8.E2M1, 64, fp8.E8M0, 32, []float32{0x1p10, 1}, sparse(64, map[int]float32{0: 6, 16: 1.5})...),
			scaled(fp8.E2M1, 64, fp8.E8M0, 32, []float32{0x1p-3, 1}, sparse(64, map[int]float32{0: 6, 16: -1})...), 128 * 34.5,
		},
	} {
		got := m.Dot(c.a, c.b, false)
		require.Equal(t, math.Float32bits(c.want), math.Float32bits(got), "%s: %v", c.name, got)
	}
	full := func(last float32) Operand {
		values := make([]float32, 16)
		for i := range values {
			values[i] = 6
		}
		return nv([]float32{448, 1, 1, 1}, append(values, sparse(48, map[int]float32{0: last})...)...)
	}
	require.EqualValues(t, 115605504, m.Dot(full(.5), full(.5), false))
	require.EqualValues(t, 115605496, m.Dot(full(.5), full(-.5), false), "115605503.75, truncated to a multiple of 8")
	// Subnormal scales have the exponent -6, as zero has none: units of 2^(-12-35).
	s, zeros, tiny := &mxf4nvf4, make([]float32, 16), []float32{0x1p-9}
	require.Zero(t, s.FuseExact(zeros, zeros, tiny, tiny, s.MinPower(fp8.E4M3), 0x1p-48))
	require.EqualValues(t, 0x1p-47, s.FuseExact(zeros, zeros, tiny, tiny, s.MinPower(fp8.E4M3), 0x1p-47))
	require.EqualValues(t, float32(math.Inf(1)), s.FuseExact(zeros, zeros, tiny, tiny, s.MinPower(fp8.E4M3), float32(math.Inf(1))))
	require.Nil(t, m.SumOf(fp8.Encoding{DType: fp8.E2M1, Scale: fp8.F32}, fp8.Encoding{DType: fp8.E2M1, Scale: fp8.F32}))
}

// Sums of mxf8f6f4 of FP6 and FP4 by hand.
func TestMXFP6ByHand(t *testing.T) {
	m, err := Lookup("b200")
	require.NoError(t, err)
	mx := func(d fp8.DType, scales []float32, values ...float32) Operand {
		return scaled(d, len(values), fp8.E8M0, 32, scales, values...)
	}
	require.EqualValues(t, 210+.125*.0625, m.Dot(
		mx(fp8.E2M3, []float32{1}, 7.5, .125), mx(fp8.E3M2, []float32{1}, 28, .0625), false))
	// After 210·2^20 = 2^27·1.64 a unit is 4: five terms of 7 become 4 each, and the result
	// is a multiple of 16.
	a := mx(fp8.E2M3, []float32{0x1p20, 1}, append(sparse(32, map[int]float32{0: 7.5}), 3.5, 3.5, 3.5, 3.5, 3.5)...)
	b := mx(fp8.E3M2, []float32{1, 1}, append(sparse(32, map[int]float32{0: 28}), 2, 2, 2, 2, 2)...)
	require.EqualValues(t, 210<<20+16, m.Dot(a, b, false))
	// FP4 by FP8 has the same sum: 2^20·6·448, then 5 terms of 7.
	a = mx(fp8.E2M1, []float32{0x1p17, 1}, append(sparse(32, map[int]float32{0: 6}), 2, 2, 2, 2, 2)...)
	b = mx(fp8.E4M3, []float32{1, 1}, append(sparse(32, map[int]float32{0: 448}), 7, 7, 7, 7, 7)...)
	require.EqualValues(t, 6*448<<17+32, m.Dot(a, b, false), "units of 8, and multiples of 32")
}

// Random exact sums equal integers of any size.
func TestExactSumsAgainstIntegers(t *testing.T) {
	m, err := Lookup("b200")
	require.NoError(t, err)
	r := rand.New(rand.NewPCG(11, 12))
	for trial := range 3000 {
		scale, along := []fp8.DType{fp8.E4M3, fp8.E8M0}[trial%2], 16*(1+trial/2%2)
		if scale == fp8.E4M3 {
			along = 16
		}
		k := 1 + r.IntN(200)
		operand := func() Operand {
			o := Operand{DType: fp8.E2M1, Scale: scale, Along: along}
			for range k {
				o.Codes = append(o.Codes, uint8(r.IntN(16)))
			}
			for range (k + along - 1) / along {
				code := r.IntN(0x7f)
				if scale == fp8.E8M0 {
					code = 127 - 15 + r.IntN(30)
				}
				o.Scales = append(o.Scales, uint8(code))
			}
			return o
		}
		a, b := operand(), operand()
		want := float32(0)
		for l := 0; l < k; l += 64 {
			want = exactGroup(a, b, l, min(k, l+64), want)
		}
		require.Equal(t, math.Float32bits(want), math.Float32bits(m.Dot(a, b, false)), "%v\n%v", a, b)
	}
}

// exactGroup adds the products of codes [from, to) to c, as kind mxf4nvf4 does.
func exactGroup(a, b Operand, from, to int, c float32) float32 {
	half := []int64{0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12} // E2M1
	var terms []term
	for l := from; l < to; l += 16 {
		sum, t := int64(0), term{fraction: 2}
		for i := l; i < min(to, l+16); i++ {
			sum += half[a.Codes[i]] * half[b.Codes[i]]
		}
		for _, o := range []Operand{a, b} {
			code := int(o.Scales[l/o.Along])
			significand, exponent := 1, code-127
			if o.Scale == fp8.E4M3 {
				significand, exponent = code&7+8, code>>3-7
				if code < 8 {
					significand, exponent = code, -6
				}
				t.fraction += 3
			}
			sum *= int64(significand)
			t.exponent += exponent
			if significand == 0 {
				t.exponent = -10000
			}
		}
		t.negative, t.significand = sum < 0, big.NewInt(max(sum, -sum))
		terms = append(terms, t)
	}
	terms = append(terms, splitFloat32(c))
	largest := -126
	for _, t := range terms {
		largest = max(largest, t.exponent)
	}
	sum := new(big.Int)
	for _, t := range terms {
		sum.Add(sum, t.aligned(largest, 35))
	}
	return round(sum, largest-35, 23, big.ToZero)
}

func TestExplainExactSums(t *testing.T) {
	m, err := Lookup("b200")
	require.NoError(t, err)
	a := scaled(fp8.E2M1, 32, fp8.E4M3, 16, []float32{2, .5}, sparse(32, map[int]float32{0: 6, 1: 3, 20: 1.5})...)
	b := scaled(fp8.E2M1, 32, fp8.E4M3, 16, []float32{1, .25}, sparse(32, map[int]float32{0: 1, 1: -1, 20: 2})...)
	var text strings.Builder
	require.NoError(t, m.Explain(&text, a, b, true))
	require.Equal(t, `b200: Blackwell: 32 products and the addend, 25 bits, toward zero; MX scales inside
e2m1 times e2m1, 32 products
block scales multiply exact sums of 16 products, aligned with the exponents of the scales

k 0 to 31, addend 0
  aligned to 2^1, of k 0 to 15, scales 2 and 1; a unit is 2^-34
  = 6.375

result  6.375
exact   6.375
error   none
`, text.String())
}
