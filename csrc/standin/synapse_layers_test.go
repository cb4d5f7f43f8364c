//go:build gaudi && cgo && linux

package standin

import (
	"encoding/binary"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

// Kernels that move data.

func sequence(n int) []float32 {
	out := make([]float32, n)
	for i := range out {
		out[i] = float32(i)
	}
	return out
}

func axisParams(axis uint32) []byte { return binary.LittleEndian.AppendUint32(nil, axis) }

// sliceParams is one range of synSliceParamsV2.
func sliceParams(axis uint32, start, end, step uint64) []byte {
	b := make([]byte, 704)
	binary.LittleEndian.PutUint32(b, axis)
	binary.LittleEndian.PutUint64(b[104:], start)
	binary.LittleEndian.PutUint64(b[304:], end)
	binary.LittleEndian.PutUint64(b[504:], step)
	return b
}

func TestMovingData(t *testing.T) {
	s := open(t, gaudi2)
	run := func(guid string, params []byte, sizes []uint64, in func(g *graph) []*tensor) []float32 {
		return floatsFrom(one(s, gaudi2, guid, params, typeF32, sizes, in), typeF32)
	}
	six := func(g *graph) []*tensor { return []*tensor{g.floats(sequence(6), 3, 2)} }
	require.Equal(t, []float32{0, 3, 1, 4, 2, 5}, run("transpose", transposeParams(1, 0), []uint64{2, 3}, six))
	cube := func(g *graph) []*tensor { return []*tensor{g.floats(sequence(24), 4, 3, 2)} }
	got := run("transpose", transposeParams(2, 0, 1), []uint64{2, 4, 3}, cube) // out[a][b][c] = in[b][c][a], fastest first
	for i, x := range got {
		a, b, c := i%2, i/2%4, i/8
		require.EqualValues(t, b+4*c+12*a, x)
	}
	require.Equal(t, []float32{1, 2, 4, 5}, run("slice", sliceParams(0, 1, 3, 1), []uint64{2, 2}, six))
	require.Equal(t, []float32{3, 4, 5}, run("slice", sliceParams(1, 1, 2, 1), []uint64{3, 1}, six))
	require.Equal(t, []float32{0, 2, 3, 5}, run("slice", sliceParams(0, 0, 3, 2), []uint64{2, 2}, six))
	require.Equal(t, []float32{0, 1, 2, 9, 3, 4, 5, 8}, run("concat", axisParams(0), []uint64{4, 2},
		func(g *graph) []*tensor { return append(six(g), g.floats([]float32{9, 8}, 1, 2)) }))
	require.Equal(t, []float32{0, 1, 2, 3, 4, 5, 7, 8, 9}, run("concat", axisParams(1), []uint64{3, 3},
		func(g *graph) []*tensor { return append(six(g), g.floats([]float32{7, 8, 9}, 3, 1)) }))
	require.Equal(t, sequence(6), run("reshape", nil, []uint64{2, 3}, six))
	require.Equal(t, sequence(6), run("identity", nil, []uint64{3, 2}, six))
	require.Equal(t, i32Bytes(0x3f800000), one(s, gaudi2, "reinterpret_cast", nil, typeI32, []uint64{1}, func(g *graph) []*tensor { return []*tensor{g.floats([]float32{1}, 1)} }))
}

func TestMismatchedData(t *testing.T) {
	s := open(t, gaudi2)
	for _, c := range []struct {
		guid   string
		params []byte
		out    []uint64
	}{
		{"transpose", transposeParams(1, 1), []uint64{2, 2}},
		{"transpose", transposeParams(1, 0), []uint64{3, 2}},
		{"transpose", transposeParams(0, 1, 2), []uint64{3, 2}},
		{"slice", sliceParams(0, 1, 4, 1), []uint64{3, 2}},
		{"slice", sliceParams(0, 1, 3, 1), []uint64{3, 2}},
		{"slice", sliceParams(2, 0, 1, 1), []uint64{3, 2}},
		{"slice", sliceParams(0, 1, 3, 0), []uint64{2, 2}},
		{"reshape", nil, []uint64{5}},
		{"identity", nil, []uint64{6}},
		{"concat", axisParams(2), []uint64{3, 2}},
		{"concat", axisParams(0), []uint64{4, 2}},
	} {
		g := s.graph(gaudi2)
		status, _ := g.node(c.guid, c.params, []*tensor{g.temp(typeF32, c.out...)}, []*tensor{g.temp(typeF32, 3, 2)})
		require.Equal(t, fail, status, "%s %v", c.guid, c.out)
	}
}

func TestConstant(t *testing.T) {
	s := open(t, gaudi2)
	got := one(s, gaudi2, "constant_f32", f32Bytes([]float32{2.5}), typeF32, []uint64{3}, func(*graph) []*tensor { return nil })
	require.Equal(t, f32Bytes([]float32{2.5, 2.5, 2.5}), got)
}

func TestGatherAndEmbedding(t *testing.T) {
	s := open(t, gaudi2)
	table := func(g *graph) *tensor { return g.floats(sequence(8), 2, 4) } // 4 rows of 2
	got := one(s, gaudi2, "gather_fwd_f32", axisParams(1), typeF32, []uint64{2, 3}, func(g *graph) []*tensor {
		return []*tensor{table(g), g.in(typeI32, i32Bytes(3, 0, 3), 3)}
	})
	require.Equal(t, []float32{6, 7, 0, 1, 6, 7}, floatsFrom(got, typeF32))
	got = one(s, gaudi2, "gather_fwd_f32", axisParams(0), typeF32, []uint64{1, 4}, func(g *graph) []*tensor {
		return []*tensor{table(g), g.in(typeI32, i32Bytes(1), 1)}
	})
	require.Equal(t, []float32{1, 3, 5, 7}, floatsFrom(got, typeF32))
	got = one(s, gaudi2, "gather_fwd_f32", axisParams(1), typeF32, []uint64{2, 1}, func(g *graph) []*tensor {
		return []*tensor{table(g), g.in(typeI32, i32Bytes(4), 1)}
	})
	require.Equal(t, byte(0xff), got[0], "an index out of range gives NaN")

	params := append(i32Bytes(4, -1), 0, 0, 0, 0)
	got = one(s, gaudi2, "embedding_dense_pt_bwd_f32", params, typeF32, []uint64{2, 4}, func(g *graph) []*tensor {
		return []*tensor{g.floats([]float32{1, 2, 10, 20, 100, 200}, 2, 3), g.in(typeI32, i32Bytes(3, 0, 3), 3)}
	})
	require.Equal(t, []float32{10, 20, 0, 0, 0, 0, 101, 202}, floatsFrom(got, typeF32))
}

// Layers: the forward pass against float64, the backward pass against its finite
// differences.

func normal(random *rand.Rand, n int) []float32 {
	out := make([]float32, n)
	for i := range out {
		out[i] = float32(random.NormFloat64())
	}
	return out
}

func wide(x []float32) []float64 {
	out := make([]float64, len(x))
	for i := range x {
		out[i] = float64(x[i])
	}
	return out
}

// slopes returns the gradient of f at x by central differences.
func slopes(x []float64, f func(x []float64) float64) []float64 {
	const h = 1e-5
	out := make([]float64, len(x))
	for i := range x {
		at := x[i]
		x[i] = at + h
		up := f(x)
		x[i] = at - h
		out[i] = (up - f(x)) / (2 * h)
		x[i] = at
	}
	return out
}

func dot(a, b []float64) (sum float64) {
	for i := range a {
		sum += a[i] * b[i]
	}
	return sum
}

func near(t *testing.T, want []float64, got []float32, tolerance float64, what string) {
	t.Helper()
	require.Len(t, got, len(want))
	scale := math.Sqrt(dot(want, want) / float64(len(want)))
	for i := range want {
		require.InDelta(t, want[i], got[i], tolerance*scale, "%s [%d]", what, i)
	}
}

func rmsNorm(x, gamma []float64, eps float64) []float64 {
	n := len(gamma)
	out := make([]float64, len(x))
	for row := 0; row < len(x); row += n {
		inverse := 1 / math.Sqrt(dot(x[row:row+n], x[row:row+n])/float64(n)+eps)
		for i := range n {
			out[row+i] = x[row+i] * inverse * gamma[i]
		}
	}
	return out
}

func TestRMSNorm(t *testing.T) {
	const n, rows = 12, 3
	s := open(t, gaudi2)
	random := rand.New(rand.NewPCG(1, 2))
	x, gamma, dy := normal(random, n*rows), normal(random, n), normal(random, n*rows)
	for i := range n {
		x[i] *= 1e-3 // so that eps matters
	}
	for _, c := range []struct {
		bytes int
		eps   float64
	}{{24, 1e-6}, {8, 1e-6}, {12, 1e-5}} { // 12: an unknown size, so the kernel's default eps
		params := make([]byte, c.bytes)
		params[0] = 1
		binary.LittleEndian.PutUint32(params[4:], math.Float32bits(1e-6))
		g := s.graph(gaudi2)
		in, weight := g.floats(x, n, rows, 1), g.floats(gamma, n)
		y, inverse := g.out(typeF32, n, rows, 1), g.out(typeF32, 1, rows, 1)
		g.add("rms_norm_ex_fwd_f32", params, []*tensor{y, inverse}, in, weight)
		dx, dgamma := g.out(typeF32, n, rows, 1), g.out(typeF32, n)
		back := make([]byte, 16)
		g.add("rms_norm_ex_bwd_f32", back, []*tensor{dx, dgamma}, g.floats(dy, n, rows, 1), in, weight, inverse)
		g.run()
		near(t, rmsNorm(wide(x), wide(gamma), c.eps), g.floatsOf(y), 1e-5, "y")
		if c.bytes == 24 {
			near(t, slopes(wide(gamma), func(gamma []float64) float64 { return dot(rmsNorm(wide(x), gamma, c.eps), wide(dy)) }), g.floatsOf(dgamma), 1e-4, "dgamma")
			rest := wide(x)[n:] // central differences are inaccurate where x is 1e-3
			near(t, slopes(rest, func(x []float64) float64 { return dot(rmsNorm(x, wide(gamma), c.eps), wide(dy)[n:]) }), g.floatsOf(dx)[n:], 1e-4, "dx")
		}
	}
}

// Attention: q is {width, rows, group, heads}, k and v {width, rows, 1, heads}: group
// query heads share keys and values.
const width, rows, group, heads = 4, 6, 2, 3

// sees reports whether query i of a head sees key j.
func attention(q, k, v []float64, scale float64, sees func(head, i, j int) bool) []float64 {
	out := make([]float64, len(q))
	for head := range heads * group {
		shared := head / group * rows * width
		for i := range rows {
			at := (head*rows + i) * width
			var weights [rows]float64
			sum := 0.0
			for j := range rows {
				if !sees(head/group, i, j) {
					continue
				}
				weights[j] = math.Exp(scale * dot(q[at:at+width], k[shared+j*width:][:width]))
				sum += weights[j]
			}
			for j := range rows {
				for d := range width {
					out[at+d] += weights[j] / sum * v[shared+j*width+d]
				}
			}
		}
	}
	return out
}

func sdpaParams(scale float32, causal, inference bool) []byte {
	b := make([]byte, 32)
	binary.LittleEndian.PutUint32(b, math.Float32bits(scale))
	if causal {
		b[4] = 1
	}
	if inference {
		b[20] = 1
	}
	return b
}

func TestAttention(t *testing.T) {
	s := open(t, gaudi2)
	random := rand.New(rand.NewPCG(4, 5))
	q, do := normal(random, width*rows*group*heads), normal(random, width*rows*group*heads)
	k, v := normal(random, width*rows*heads), normal(random, width*rows*heads)
	const scale = 0.5
	for name, sees := range map[string]func(head, i, j int) bool{
		"all":    func(_, _, _ int) bool { return true },
		"causal": func(_, i, j int) bool { return j <= i },
		"mask":   func(head, i, j int) bool { return j <= i && (j >= 3 || i < 3+head%2) },
	} {
		causal := name == "causal"
		for _, typ := range []uint32{typeF32, typeBF16} {
			tolerance := 1e-5
			g := s.graph(gaudi2)
			of := func(x []float32, sizes ...uint64) *tensor {
				if typ == typeBF16 {
					return g.in(typ, bf16Bytes(x), sizes...)
				}
				return g.floats(x, sizes...)
			}
			if typ == typeBF16 {
				tolerance = 0.03
			}
			queries, shared := []uint64{width, rows, group, heads}, []uint64{width, rows, 1, heads}
			in := []*tensor{of(q, queries...), of(k, shared...), of(v, shared...), nil}
			if name == "mask" {
				var added []float32
				for at := range rows * rows * heads {
					added = append(added, 0)
					if !sees(at/rows/rows, at/rows%rows, at%rows) {
						added[at] = -math.Float32frombits(0x7f7f0000)
					}
				}
				in[3] = of(added, rows, rows, 1, heads)
			}
			o, m, linv := g.out(typ, queries...), g.out(typ, 1, rows, group, heads), g.out(typeF32, 1, rows, group, heads)
			suffix := suffixes[typ]
			g.add("sdpa_recomp_fwd_"+suffix, sdpaParams(scale, causal, false), []*tensor{o, m, linv}, append(in, make([]*tensor, 8)...)...)
			dq, dk, dv := g.out(typ, queries...), g.out(typ, shared...), g.out(typ, shared...)
			g.add("sdpa_recomp_bwd_"+suffix, sdpaParams(scale, causal, false), []*tensor{dq, dk, dv}, of(do, queries...), in[0], in[1], in[2], in[3], m, linv, nil, o)
			only := g.out(typ, queries...)
			g.add("sdpa_recomp_fwd_"+suffix, sdpaParams(scale, causal, true), []*tensor{only}, in...)
			g.run()
			near(t, attention(wide(q), wide(k), wide(v), scale, sees), g.floatsOf(o), tolerance, "o")
			require.Equal(t, g.floatsOf(o), g.floatsOf(only))
			loss := func(q, k, v []float64) float64 { return dot(attention(q, k, v, scale, sees), wide(do)) }
			near(t, slopes(wide(q), func(q []float64) float64 { return loss(q, wide(k), wide(v)) }), g.floatsOf(dq), 10*tolerance, "dq")
			near(t, slopes(wide(k), func(k []float64) float64 { return loss(wide(q), k, wide(v)) }), g.floatsOf(dk), 10*tolerance, "dk")
			near(t, slopes(wide(v), func(v []float64) float64 { return loss(wide(q), wide(k), v) }), g.floatsOf(dv), 10*tolerance, "dv")
		}
	}
}

func TestLayerRules(t *testing.T) {
	s := open(t, gaudi2)
	f32 := func(sizes ...uint64) func(*graph) *tensor {
		return func(g *graph) *tensor { return g.temp(typeF32, sizes...) }
	}
	bf16 := func(sizes ...uint64) func(*graph) *tensor {
		return func(g *graph) *tensor { return g.temp(typeBF16, sizes...) }
	}
	type operands []func(*graph) *tensor
	q := f32(4, 6, 2)
	for _, c := range []struct {
		guid    string
		params  []byte
		out, in operands
	}{
		{"rms_norm_ex_fwd_f32", make([]byte, 24), operands{f32(4, 2, 1), f32(1, 2, 1)}, operands{f32(4, 2, 1), f32(2)}},
		{"rms_norm_ex_fwd_f32", make([]byte, 24), operands{f32(4, 2, 1), f32(2)}, operands{f32(4, 2, 1), f32(4)}},
		{"rms_norm_ex_fwd_f32", make([]byte, 24), operands{f32(4, 2), f32(1, 2)}, operands{f32(4, 2), f32(4)}}, // wrong before 1.21
		{"rms_norm_ex_bwd_f32", make([]byte, 24), operands{f32(4, 2, 1), f32(4)}, operands{f32(4, 2, 1), f32(4, 2, 1), f32(4), f32(1, 2, 1)}},
		{"sdpa_recomp_fwd_f32", sdpaParams(1, true, false), operands{q}, operands{q, q, q}}, // training needs m and linv
		{"sdpa_recomp_fwd_f32", sdpaParams(1, true, true), operands{q, f32(1, 6, 2)}, operands{q, q, q}},
		{"sdpa_recomp_fwd_f32", sdpaParams(1, true, true), operands{q}, operands{q, f32(4, 7, 2), f32(4, 7, 2)}}, // causal attention needs equal times
		{"sdpa_recomp_fwd_f32", sdpaParams(1, false, true), operands{q}, operands{q, f32(4, 6, 3), f32(4, 6, 3)}},
		{"sdpa_recomp_fwd_bf16", sdpaParams(1, false, false), operands{bf16(4, 6, 2), bf16(1, 6, 2), bf16(1, 6, 2)}, operands{bf16(4, 6, 2), bf16(4, 6, 2), bf16(4, 6, 2)}}, // linv is F32
		{"sdpa_recomp_fwd_f32", sdpaParams(1, false, true), operands{q}, operands{q, q, q, f32(6, 5, 2)}},                                                                   // a mask has the size of scores
		{"sdpa_recomp_fwd_f32", sdpaParams(1, true, true), operands{q}, operands{q, q, q, f32(6, 6, 2)}},                                                                    // a mask excludes causality
		{"sdpa_recomp_bwd_f32", sdpaParams(1, false, false), operands{q, q, q}, operands{q, q, q, q}},
	} {
		g := s.graph(gaudi2)
		made := func(list operands) (out []*tensor) {
			for _, f := range list {
				out = append(out, f(g))
			}
			return out
		}
		status, _ := g.node(c.guid, c.params, made(c.out), made(c.in))
		require.Equal(t, fail, status, c.guid)
	}
}
