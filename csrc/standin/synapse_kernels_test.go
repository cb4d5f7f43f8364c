//go:build gaudi && cgo && linux

package standin

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/fp8"
)

// one runs a single node and returns its output.
func one(s *synapse, model int, guid string, params []byte, typ uint32, sizes []uint64, in func(g *graph) []*tensor) []byte {
	g := s.graph(model)
	out := g.out(typ, sizes...)
	g.add(guid, params, []*tensor{out}, in(g)...)
	g.run()
	return g.bytesOf(out)
}

func sigmoid(x float64) float64 { return 1 / (1 + math.Exp(-x)) }

var nan, inf = math.NaN(), math.Inf(1)

func TestElementwise(t *testing.T) {
	s := open(t, gaudi2)
	values := []float64{0, math.Copysign(0, -1), 1, -1, 0.3, -2.7, 1e-30, -1e20, 3.5, 64, inf, -inf, nan}
	unary := map[string]func(float64) float64{
		"abs": math.Abs, "sqrt": math.Sqrt, "exp": math.Exp, "log": math.Log, "floor": math.Floor, "erf": math.Erf, "sigmoid": sigmoid,
		"silu": func(x float64) float64 { return x * sigmoid(x) },
	}
	for name, f := range unary {
		for _, typ := range []uint32{typeF32, typeBF16} {
			g := s.graph(gaudi2)
			x, maxError := given(g, typ, values), 0x1p-20
			if typ == typeBF16 {
				maxError = 0x1p-8
			}
			out := g.out(typ, x.sizes...)
			g.add(name+"_fwd_"+suffixes[typ], nil, []*tensor{out}, x)
			g.run()
			in := g.floatsOf(x)
			for i, got := range g.floatsOf(out) {
				within(t, f(float64(in[i])), float64(got), maxError, fmt.Sprint(name, " of ", in[i]))
			}
		}
	}
	binary := map[string]func(a, b float64) float64{
		"add": func(a, b float64) float64 { return a + b }, "sub": func(a, b float64) float64 { return a - b },
		"mult": func(a, b float64) float64 { return a * b }, "div": func(a, b float64) float64 { return a / b },
		"max": func(a, b float64) float64 { return max(a, b) }, "min": func(a, b float64) float64 { return min(a, b) },
	}
	for name, f := range binary {
		g := s.graph(gaudi2)
		column := make([]float32, len(values))
		for i, v := range values {
			column[i] = float32(v)
		}
		n := uint64(len(values))
		x, y, out := g.floats(column, n), g.floats(column, 1, n), g.out(typeF32, n, n)
		g.add(name+"_fwd_f32", nil, []*tensor{out}, x, y) // all pairs of values, with different numbers of dimensions
		g.run()
		for i, got := range g.floatsOf(out) {
			a, b := column[i%len(values)], column[i/len(values)]
			within(t, float64(float32(f(float64(a), float64(b)))), float64(got), 0x1p-20, fmt.Sprint(name, " of ", a, " and ", b))
		}
	}
}

var suffixes = map[uint32]string{typeF32: "f32", typeBF16: "bf16", typeI32: "i32", typeE4M3: "hf8", typeE5M2: "f8", typeI8: "i8"}

// given returns a one-dimensional tensor of values.
func given(g *graph, typ uint32, values []float64) *tensor {
	in := make([]float32, len(values))
	for i, v := range values {
		in[i] = float32(v)
	}
	if typ == typeBF16 {
		return g.in(typ, bf16Bytes(in), uint64(len(in)))
	}
	return g.floats(in, uint64(len(in)))
}

// within requires a relative error of at most maxError.
func within(t *testing.T, want, got, maxError float64, what string) {
	t.Helper()
	switch {
	case math.IsNaN(want):
		require.True(t, math.IsNaN(got), "%s: %v, not NaN", what, got)
	case math.IsInf(want, 0):
		require.Equal(t, want, got, what)
	default:
		require.InDelta(t, want, got, maxError*math.Abs(want)+1e-37, what)
	}
}

func TestComparisonsAndWhere(t *testing.T) {
	s := open(t, gaudi2)
	a, b := []float32{1, 2, 2, float32(nan)}, []float32{2, 1, 2, 2}
	for name, want := range map[string]string{
		"greater": "\x00\x01\x00\x00", "less": "\x01\x00\x00\x00", "equal": "\x00\x00\x01\x00", "less_equal": "\x01\x00\x01\x00",
	} {
		got := one(s, gaudi2, name+"_fwd_f32", nil, typeI8, []uint64{4}, func(g *graph) []*tensor { return []*tensor{g.floats(a, 4), g.floats(b, 4)} })
		require.Equal(t, want, string(got), name)
	}
	got := one(s, gaudi2, "where_fwd_f32", nil, typeF32, []uint64{2, 2}, func(g *graph) []*tensor {
		return []*tensor{g.in(typeI8, []byte{1, 0}, 1, 2), g.floats([]float32{5, float32(nan)}, 2), g.floats([]float32{7}, 1)}
	})
	require.Equal(t, f32Bytes([]float32{5, float32(nan), 7, 7}), got)
	large := i32Bytes(1<<24+1, -7)
	got = one(s, gaudi2, "where_fwd_i8", nil, typeI8, []uint64{2}, func(g *graph) []*tensor {
		return []*tensor{g.in(typeI8, []byte{1, 0}, 2), g.in(typeI8, []byte{0x80, 3}, 2), g.in(typeI8, []byte{5, 0x7f}, 2)}
	})
	require.Equal(t, []byte{0x80, 0x7f}, got, "where_fwd copies bytes")
	got = one(s, gaudi2, "add_fwd_i32", nil, typeI32, []uint64{2}, func(g *graph) []*tensor {
		return []*tensor{g.in(typeI32, large, 2), g.in(typeI32, i32Bytes(1), 1)}
	})
	require.Equal(t, i32Bytes(1<<24+2, -6), got, "add_fwd keeps all bits of an I32")
	for name, want := range map[string][]byte{"isfinite": {1, 0, 0}, "isnan": {0, 0, 1}} {
		got = one(s, gaudi2, name+"_fwd_f32", nil, typeI8, []uint64{3}, func(g *graph) []*tensor { return []*tensor{given(g, typeF32, []float64{1, -inf, nan})} })
		require.Equal(t, want, got, name)
	}
}

// STANDIN_NAN chooses whether a maximum returns NaN, which is not published.
func TestMaximaOfNaN(t *testing.T) {
	s := open(t, gaudi2)
	for _, c := range []struct {
		setting string
		want    float64
	}{{"", nan}, {"drop", 2}} {
		t.Setenv("STANDIN_NAN", c.setting)
		values := []float64{1, nan, 2}
		in := func(g *graph) []*tensor { return []*tensor{given(g, typeF32, values)} }
		got := one(s, gaudi2, "reduce_max_multi_dim_fwd_f32", reduction(0, false), typeF32, []uint64{1}, in)
		within(t, c.want, float64(floatsFrom(got, typeF32)[0]), 0, "reduce_max")
		got = one(s, gaudi2, "max_fwd_f32", nil, typeF32, []uint64{3}, func(g *graph) []*tensor { return append(in(g), g.floats([]float32{2}, 1)) })
		within(t, c.want, float64(floatsFrom(got, typeF32)[1]), 0, "max")
		g := s.graph(gaudi2)
		amax := g.out(typeF32, 1)
		g.add("convert_to_fp8_f32", castParams(0), []*tensor{g.out(typeE5M2, 3), amax}, in(g)...)
		g.run()
		within(t, c.want, float64(g.floatsOf(amax)[0]), 0, "amax")
	}
}

func reduction(mask uint32, keep bool) []byte {
	b := binary.LittleEndian.AppendUint32(nil, mask)
	if keep {
		return append(b, 1, 0, 0, 0)
	}
	return append(b, 0, 0, 0, 0)
}

func TestReductions(t *testing.T) {
	s := open(t, gaudi2)
	x := make([]float32, 24) // {4, 3, 2}
	for i := range x {
		x[i] = float32(i*7%11) - 4
	}
	for name, fold := range map[string]func(a, b float64) float64{
		"sum": func(a, b float64) float64 { return a + b }, "max": math.Max, "min": math.Min,
	} {
		for mask := uint32(0); mask < 8; mask++ {
			for _, keep := range []bool{true, false} {
				all := mask
				if mask == 0 {
					all = 7
				}
				size := []uint64{4, 3, 2}
				var kept []uint64
				for d := range size {
					if all>>d&1 == 1 {
						if keep {
							kept = append(kept, 1)
						}
					} else {
						kept = append(kept, size[d])
					}
				}
				if len(kept) == 0 {
					kept = []uint64{1}
				}
				want, order := map[int]float64{}, []int{}
				for i, v := range x {
					key, stride := 0, 1
					for d, at := range []int{i % 4, i / 4 % 3, i / 12} {
						if all>>d&1 == 0 {
							key += at * stride
							stride *= int(size[d])
						}
					}
					if _, ok := want[key]; !ok {
						order = append(order, key)
						want[key] = map[string]float64{"max": -inf, "min": inf}[name]
					}
					want[key] = fold(want[key], float64(v))
				}
				got := floatsFrom(one(s, gaudi2, "reduce_"+name+"_multi_dim_fwd_f32", reduction(mask, keep), typeF32, kept,
					func(g *graph) []*tensor { return []*tensor{g.floats(x, 4, 3, 2)} }), typeF32)
				for _, key := range order {
					require.InDelta(t, want[key], got[key], 1e-6, "%s mask %b keep %v", name, mask, keep)
				}
			}
		}
	}
}

// Casts.

func formatOf(typ uint32, model int) fp8.DType {
	switch {
	case typ == typeE5M2:
		return fp8.E5M2
	case typ == typeBF16:
		return fp8.BF16
	case model == gaudi2:
		return fp8.E4M3IEEE
	}
	return fp8.E4M3
}

func TestEveryCodeOfFP8(t *testing.T) {
	all := make([]byte, 256)
	for i := range all {
		all[i] = byte(i)
	}
	for _, model := range []int{gaudi2, gaudi3} {
		s := open(t, model)
		for _, typ := range []uint32{typeE4M3, typeE5M2} {
			for guid, scale := range map[string]float32{"cast_" + suffixes[typ] + "_to_f32": 1, "convert_from_fp8_f32": 0.375} {
				got := floatsFrom(one(s, model, guid, nil, typeF32, []uint64{256}, func(g *graph) []*tensor {
					in := []*tensor{g.in(typ, all, 256)}
					if scale != 1 {
						in = append(in, g.floats([]float32{scale}, 1))
					}
					return in
				}), typeF32)
				for i := range all {
					want := formatOf(typ, model).Float32(uint32(i)) * scale
					within(t, float64(want), float64(got[i]), 0, fmt.Sprintf("%s of %02x", guid, i))
				}
			}
		}
	}
}

// awkward returns values for casts: all magnitudes, ties, ends of ranges.
func awkward() []float32 {
	random := rand.New(rand.NewPCG(1, 1))
	values := []float32{0, float32(math.Copysign(0, -1)), 240, 247.9, 248, 448, 464, 465, 480, 57344, 61439, 61440, 1e30, -1e30, float32(inf), float32(-inf), float32(nan), 0x1p-10, 0x1p-17, 0x1.8p-10, 1e-44}
	for range 4000 {
		values = append(values, math.Float32frombits(random.Uint32()))
	}
	for range 4000 { // around the formats' ranges, often ties
		values = append(values, float32(math.Ldexp(float64(random.IntN(64)-32), random.IntN(30)-20)))
	}
	return values
}

// canonical removes a NaN's sign and payload, which differ.
func canonical(d fp8.DType, code uint32) uint32 {
	if x := d.Float32(code); x != x {
		return 0x7f
	}
	return code
}

func TestCastsToNearest(t *testing.T) {
	values := awkward()
	n := uint64(len(values))
	for _, model := range []int{gaudi2, gaudi3} {
		s := open(t, model)
		for _, typ := range []uint32{typeE4M3, typeE5M2, typeBF16} {
			d := formatOf(typ, model)
			for _, c := range []struct {
				guid     string
				params   []byte
				overflow fp8.Overflow
			}{
				{"cast_f32_to_" + suffixes[typ], nil, fp8.NonSaturating},
				{"cast_f32_to_" + suffixes[typ], castParams(0), fp8.NonSaturating},
				{"convert_to_fp8_f32", castParams(0), fp8.Saturate},
			} {
				if typ == typeBF16 && c.overflow == fp8.Saturate {
					continue
				}
				got := one(s, model, c.guid, c.params, typ, []uint64{n}, func(g *graph) []*tensor { return []*tensor{g.floats(values, n)} })
				for i, x := range values {
					code := uint32(got[i*typeSizes[typ]])
					if typ == typeBF16 {
						code = uint32(binary.LittleEndian.Uint16(got[2*i:]))
					}
					require.Equal(t, canonical(d, d.Nearest(x, c.overflow)), canonical(d, code), "%s to %s of %v (%x)", c.guid, d, x, math.Float32bits(x))
				}
			}
		}
	}
}

// convert_to_fp8 multiplies by the scale; amax is that of the unscaled input. The outputs
// of the hybrid are E5M2, then E4M3, each with its own scale.
func TestConvertToFP8(t *testing.T) {
	for _, model := range []int{gaudi2, gaudi3} {
		s := open(t, model)
		x := []float32{0.3, -7, 1000, 0.01, 2, -0.5}
		g := s.graph(model)
		wide, narrow, amax := g.out(typeE5M2, 3, 2), g.out(typeE4M3, 3, 2), g.out(typeF32, 1)
		in := g.floats(x, 3, 2)
		g.add("convert_to_fp8_hybrid_f32", castParams(0), []*tensor{wide, narrow, amax}, in, g.floats([]float32{64}, 1), g.floats([]float32{0.25}, 1))
		single := g.out(typeE4M3, 3, 2)
		g.add("convert_to_fp8_f32", castParams(0), []*tensor{single}, in, g.floats([]float32{0.5}, 1))
		unscaled := g.out(typeE4M3, 3, 2)
		g.add("convert_to_fp8_f32", castParams(0), []*tensor{unscaled}, in, nil)
		g.run()
		require.Equal(t, []float32{1000}, g.floatsOf(amax))
		for i, v := range x {
			e4m3 := formatOf(typeE4M3, model)
			require.EqualValues(t, fp8.E5M2.Nearest(v*64, fp8.Saturate), g.bytesOf(wide)[i])
			require.EqualValues(t, e4m3.Nearest(v*0.25, fp8.Saturate), g.bytesOf(narrow)[i])
			require.EqualValues(t, e4m3.Nearest(v*0.5, fp8.Saturate), g.bytesOf(single)[i])
			require.EqualValues(t, e4m3.Nearest(v, fp8.Saturate), g.bytesOf(unscaled)[i])
		}
	}
}

// Stochastic rounding rounds up with a probability proportional to the discarded fraction,
// keeps exact values, and differs between launches.
func TestStochasticRounding(t *testing.T) {
	s := open(t, gaudi2)
	const n = 1 << 16
	x := make([]float32, n)
	for i := range x {
		x[i] = []float32{1 + 0.3/8, -(1 + 0.7/8), 1.25, 0x0.3p-9}[i%4]
	}
	var last string
	for range 2 {
		got := one(s, gaudi2, "convert_to_fp8_f32", castParams(3), typeE4M3, []uint64{n}, func(g *graph) []*tensor { return []*tensor{g.floats(x, n)} })
		counts := map[int]map[byte]int{0: {}, 1: {}, 2: {}, 3: {}}
		for i, code := range got {
			counts[i%4][code]++
		}
		const each = n / 4
		require.InDelta(t, 0.3, float64(counts[0][0x39])/each, 0.02)
		require.InDelta(t, 0.7, float64(counts[1][0xb9])/each, 0.02)
		require.Equal(t, each, counts[2][0x3a], "exact")
		require.InDelta(t, 3.0/16, float64(counts[3][0x01])/each, 0.02, "subnormal")
		for i := range 4 {
			require.LessOrEqual(t, len(counts[i]), 2)
		}
		require.NotEqual(t, last, string(got))
		last = string(got)
	}
	got := one(s, gaudi2, "cast_f32_to_bf16", castParams(3), typeBF16, []uint64{n}, func(g *graph) []*tensor {
		return []*tensor{g.floats(repeat(1+0x1p-9, n), n)}
	})
	up := 0
	for _, v := range floatsFrom(got, typeBF16) {
		if v == 1+0x1p-7 {
			up++
		}
	}
	require.InDelta(t, 0.25, float64(up)/n, 0.02)
}

func repeat(x float32, n int) []float32 {
	out := make([]float32, n)
	for i := range out {
		out[i] = x
	}
	return out
}

func TestCastsOfIntegers(t *testing.T) {
	s := open(t, gaudi2)
	got := one(s, gaudi2, "cast_i32_to_f32", nil, typeF32, []uint64{3}, func(g *graph) []*tensor { return []*tensor{g.in(typeI32, i32Bytes(-3, 0, 1<<20), 3)} })
	require.Equal(t, f32Bytes([]float32{-3, 0, 1 << 20}), got)
	got = one(s, gaudi2, "cast_i8_to_f32", nil, typeF32, []uint64{2}, func(g *graph) []*tensor { return []*tensor{g.in(typeI8, []byte{1, 0xff}, 2)} })
	require.Equal(t, f32Bytes([]float32{1, -1}), got)
	got = one(s, gaudi2, "cast_f32_to_i32", nil, typeI32, []uint64{4}, func(g *graph) []*tensor {
		return []*tensor{g.floats([]float32{-2, 2.5, 1e20, float32(nan)}, 4)}
	})
	require.Equal(t, i32Bytes(-2, 2, math.MaxInt32, math.MinInt32), got)
}
