//go:build gaudi && cgo && linux

package standin

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/backend/arith"
	"octet/fp8"
)

// codes is a row-major matrix of FP8 codes.
type codes struct {
	dtype fp8.DType
	codes []byte
}

func fp8Type(d fp8.DType) uint32 {
	if d == fp8.E5M2 {
		return typeE5M2
	}
	return typeE4M3
}

// randomCodes returns random finite codes, with many subnormals.
func randomCodes(random *rand.Rand, d fp8.DType, n int) codes {
	c := codes{d, make([]byte, n)}
	for i := range c.codes {
		for {
			c.codes[i] = byte(random.Uint32())
			if random.IntN(8) == 0 {
				c.codes[i] &= 0x83 // subnormal
			}
			if x := d.Float32(uint32(c.codes[i])); x-x == 0 {
				break
			}
		}
	}
	return c
}

func (c codes) transposed(rows, columns int) codes {
	t := codes{c.dtype, make([]byte, len(c.codes))}
	for i := range rows {
		for j := range columns {
			t.codes[j*rows+i] = c.codes[i*columns+j]
		}
	}
	return t
}

// gemm multiplies a, m×k, and b, k×n, on the stand-in, each stored transposed or not.
func gemm(s *synapse, model, m, n, k int, a, b codes, transA, transB bool, guid string, scales ...*float32) []float32 {
	g := s.graph(model)
	stored := func(c codes, rows, columns int, transposed bool) *tensor {
		if transposed {
			c, rows, columns = c.transposed(rows, columns), columns, rows
		}
		return g.in(fp8Type(c.dtype), c.codes, uint64(columns), uint64(rows))
	}
	in := []*tensor{stored(a, m, k, transA), stored(b, k, n, transB)}
	for _, scale := range scales {
		var x *tensor
		if scale != nil {
			x = g.floats([]float32{*scale}, 1)
		}
		in = append(in, x)
	}
	flags := []byte{0, 0}
	if transA {
		flags[0] = 1
	}
	if transB {
		flags[1] = 1
	}
	out := g.out(typeF32, uint64(n), uint64(m))
	g.add(guid, flags, []*tensor{out}, in...)
	g.run()
	return g.floatsOf(out)
}

// FP8 GEMMs have the bits of backend/arith's models. Octet's authors wrote both from one
// published source, so the test does not show that hardware agrees.
func TestFP8GemmMatchesModel(t *testing.T) {
	t.Setenv("STANDIN_MIXED", "1")
	const m, n = 9, 11
	for _, name := range []string{"gaudi2", "gaudi3"} {
		model, err := arith.Lookup(name)
		require.NoError(t, err)
		device := map[string]int{"gaudi2": gaudi2, "gaudi3": gaudi3}[name]
		s := open(t, device)
		random := rand.New(rand.NewPCG(3, 4))
		for _, pair := range model.Pairs {
			for _, k := range []int{1, 7, 16, 17, 100, 256} {
				transA, transB := k%2 == 0, k%3 == 0
				a, b := randomCodes(random, pair[0], m*k), randomCodes(random, pair[1], k*n)
				if k == 100 { // non-finite codes
					a.codes[3*k+50], b.codes[20*n+5] = 0x7f, 0x7f // NaN in all formats
					a.codes[4*k+51] = 0x7c                        // an infinity in E5M2
				}
				got := gemm(s, device, m, n, k, a, b, transA, transB, "gemm")
				columns := b.transposed(k, n)
				for i := range m {
					for j := range n {
						want := model.Dot(arith.Operand{Codes: a.codes[i*k : (i+1)*k], DType: pair[0]}, arith.Operand{Codes: columns.codes[j*k : (j+1)*k], DType: pair[1]}, false)
						require.Equal(t, math.Float32bits(want), math.Float32bits(got[i*n+j]),
							"%s %s×%s k %d [%d, %d]: %v, model %v", name, pair[0], pair[1], k, i, j, got[i*n+j], want)
					}
				}
			}
		}
	}
}

// Cancellation and wide ranges of exponents, where groups and truncated bits matter.
func TestFP8GemmCancellation(t *testing.T) {
	t.Setenv("STANDIN_MIXED", "1")
	for _, name := range []string{"gaudi2", "gaudi3"} {
		model, err := arith.Lookup(name)
		require.NoError(t, err)
		device := map[string]int{"gaudi2": gaudi2, "gaudi3": gaudi3}[name]
		s := open(t, device)
		random := rand.New(rand.NewPCG(5, 6))
		const m, n, k = 32, 24, 64
		for _, pair := range model.Pairs {
			a, b := randomCodes(random, pair[0], m*k), randomCodes(random, pair[1], k*n)
			for i := range m {
				for l := 1; l < k; l += 2 { // each product nearly cancels the one before it
					a.codes[i*k+l] = a.codes[i*k+l-1] ^ 0x80
				}
			}
			for l := 1; l < k; l += 2 {
				copy(b.codes[l*n:(l+1)*n], b.codes[(l-1)*n:l*n])
				b.codes[l*n+random.IntN(n)] &= 0x87
			}
			got, columns := gemm(s, device, m, n, k, a, b, false, false, "gemm"), b.transposed(k, n)
			for i := range m {
				for j := range n {
					want := model.Dot(arith.Operand{Codes: a.codes[i*k : (i+1)*k], DType: pair[0]}, arith.Operand{Codes: columns.codes[j*k : (j+1)*k], DType: pair[1]}, false)
					require.Equal(t, math.Float32bits(want), math.Float32bits(got[i*n+j]), "%s %s×%s [%d, %d]", name, pair[0], pair[1], i, j)
				}
			}
		}
	}
}

// Bits that float64 loses decide a tie: 2^30 + 2^6 is halfway between two F32 values, and
// the addend is 2^-32.
func TestFP8GemmTies(t *testing.T) {
	s := open(t, gaudi2)
	const one, smallest = 0x3c, 0x01 // 1 and 2^-16
	power := func(exponent int) byte { return byte(one + 4*exponent) }
	a, b := codes{fp8.E5M2, make([]byte, 2*32)}, codes{fp8.E5M2, make([]byte, 32)}
	for i, sign := range []byte{0, 0x80} {
		a.codes[32*i] = smallest | sign
		a.codes[32*i+16], a.codes[32*i+17], a.codes[32*i+18] = power(15), power(3), power(3+i)
	}
	b.codes[0], b.codes[16], b.codes[17], b.codes[18] = smallest, power(15), power(3), power(3)
	a.codes[18] = 0
	require.Equal(t, []float32{0x1p30 + 0x1p7, 0x1p30 + 0x1p7}, gemm(s, gaudi2, 2, 1, 32, a, b, false, false, "gemm"))
}

func TestFP8GemmScales(t *testing.T) {
	s := open(t, gaudi2)
	random := rand.New(rand.NewPCG(7, 8))
	a, b := randomCodes(random, fp8.E4M3IEEE, 3*32), randomCodes(random, fp8.E4M3IEEE, 32*5)
	plain := gemm(s, gaudi2, 3, 5, 32, a, b, false, false, "fp8_gemm_f32")
	half, eighth := float32(0.5), float32(0.125)
	for _, c := range []struct {
		scales []*float32
		scale  float32
	}{{[]*float32{&half, &eighth}, 0.0625}, {[]*float32{nil, &half}, 0.5}, {[]*float32{&eighth, nil}, 0.125}, {[]*float32{nil, nil}, 1}} {
		for i, got := range gemm(s, gaudi2, 3, 5, 32, a, b, false, false, "fp8_gemm_f32", c.scales...) {
			require.Equal(t, plain[i]*c.scale, got)
		}
	}
}

func TestGemmRules(t *testing.T) {
	for _, c := range []struct {
		guid   string
		a, b   uint32
		sizes  [3][]uint64 // of A, B, the output
		extra  int         // scales
		model  int
		status int
	}{
		{"gemm", typeE4M3, typeE5M2, [3][]uint64{{16, 2}, {3, 16}, {3, 2}}, 0, gaudi2, fail},
		{"gemm", typeE4M3, typeE5M2, [3][]uint64{{16, 2}, {3, 16}, {3, 2}}, 0, gaudi3, fail},
		{"gemm", typeE4M3, typeBF16, [3][]uint64{{16, 2}, {3, 16}, {3, 2}}, 0, gaudi3, fail},
		{"gemm", typeBF16, typeF32, [3][]uint64{{16, 2}, {3, 16}, {3, 2}}, 0, gaudi2, fail},
		{"gemm", typeI32, typeI32, [3][]uint64{{16, 2}, {3, 16}, {3, 2}}, 0, gaudi2, fail},
		{"gemm", typeBF16, typeBF16, [3][]uint64{{16, 2}, {3, 17}, {3, 2}}, 0, gaudi2, fail},
		{"gemm", typeBF16, typeBF16, [3][]uint64{{16, 2}, {3, 16}, {2, 3}}, 0, gaudi2, fail},
		{"gemm", typeBF16, typeBF16, [3][]uint64{{16, 2, 4}, {3, 16, 4}, {3, 2, 4}}, 0, gaudi2, fail},
		{"batch_gemm", typeBF16, typeBF16, [3][]uint64{{16, 2, 4}, {3, 16, 1}, {3, 2, 4}}, 0, gaudi2, success},
		{"batch_gemm", typeBF16, typeBF16, [3][]uint64{{16, 2, 4}, {3, 16, 2}, {3, 2, 4}}, 0, gaudi2, fail},
		{"fp8_gemm_f32", typeE4M3, typeE4M3, [3][]uint64{{16, 2}, {3, 16}, {3, 2}}, 1, gaudi2, fail}, // one scale
		{"fp8_gemm_f32", typeE4M3, typeE4M3, [3][]uint64{{16, 2}, {3, 16}, {3, 2}}, 2, gaudi2, success},
		{"fp8_gemm_f32", typeBF16, typeBF16, [3][]uint64{{16, 2}, {3, 16}, {3, 2}}, 2, gaudi2, fail},
		{"fp8_gemm_bf16", typeE4M3, typeE4M3, [3][]uint64{{16, 2}, {3, 16}, {3, 2}}, 2, gaudi2, fail}, // the output is F32
	} {
		s := load(t)
		s.do("synInitialize") // compiling needs no device
		g := s.graph(c.model)
		in := []*tensor{g.temp(c.a, c.sizes[0]...), g.temp(c.b, c.sizes[1]...)}
		for range c.extra {
			in = append(in, g.temp(typeF32, 1))
		}
		status, _ := g.node(c.guid, nil, []*tensor{g.temp(typeF32, c.sizes[2]...)}, in)
		require.Equal(t, c.status, status, "%+v", c)
	}
}

// With STANDIN_MIXED, only Gaudi3 multiplies two FP8 formats, and only FP8.
func TestMixedPairs(t *testing.T) {
	t.Setenv("STANDIN_MIXED", "1")
	for _, c := range []struct {
		a, b          uint32
		model, status int
	}{
		{typeE4M3, typeE5M2, gaudi2, fail},
		{typeE4M3, typeE5M2, gaudi3, success},
		{typeE5M2, typeE4M3, gaudi3, success},
		{typeE4M3, typeBF16, gaudi3, fail},
	} {
		s := load(t)
		s.do("synInitialize")
		g := s.graph(c.model)
		status, _ := g.node("gemm", nil, []*tensor{g.temp(typeF32, 3, 2)}, []*tensor{g.temp(c.a, 16, 2), g.temp(c.b, 3, 16)})
		require.Equal(t, c.status, status, "%+v", c)
	}
}

// GEMMs of wider types sum in F32, for operands transposed or not, with broadcast batches.
func TestWiderGemms(t *testing.T) {
	const m, n, k, batch = 5, 37, 19, 3
	s := open(t, gaudi2)
	random := rand.New(rand.NewPCG(9, 1))
	values := func(n int) []float32 {
		out := make([]float32, n)
		for i := range out {
			out[i] = fp8.BF16.Float32(fp8.BF16.Nearest(float32(random.NormFloat64()), fp8.Saturate))
		}
		return out
	}
	for flags := range 4 {
		transA, transB := flags&1, flags>>1
		a, b := values(m*k*batch), values(n*k)
		at := func(x []float32, i, j, rows, columns, transposed int) float64 {
			if transposed == 1 {
				return float64(x[j*rows+i])
			}
			return float64(x[i*columns+j])
		}
		for _, typ := range []uint32{typeF32, typeBF16} {
			g := s.graph(gaudi2)
			tensorOf := func(x []float32, sizes ...uint64) *tensor {
				if typ == typeBF16 {
					return g.in(typ, bf16Bytes(x), sizes...)
				}
				return g.floats(x, sizes...)
			}
			sizesA, sizesB := []uint64{k, m, batch}, []uint64{n, k, 1}
			if transA == 1 {
				sizesA[0], sizesA[1] = m, k
			}
			if transB == 1 {
				sizesB[0], sizesB[1] = k, n
			}
			out := g.out(typeF32, n, m, batch)
			g.add("batch_gemm", []byte{byte(transA), byte(transB)}, []*tensor{out}, tensorOf(a, sizesA...), tensorOf(b, sizesB...))
			g.run()
			got := g.floatsOf(out)
			for c := range batch {
				for i := range m {
					for j := range n {
						want, size := 0.0, 0.0
						for l := range k {
							p := at(a[c*m*k:], i, l, m, k, transA) * at(b, l, j, k, n, transB)
							want, size = want+p, size+math.Abs(p)
						}
						require.InDelta(t, want, got[(c*m+i)*n+j], size*0x1p-20, fmt.Sprint(flags, c, i, j))
					}
				}
			}
		}
	}
}

// Outputs are rounded once, and an FP8 overflow becomes infinity: the engine saturates in
// inference only.
func TestGemmOutputTypes(t *testing.T) {
	s := open(t, gaudi2)
	g := s.graph(gaudi2)
	x, y := g.floats([]float32{1 + 0x1p-8, 300, 0x1p-9, 1.0625}, 1, 4), g.floats([]float32{1}, 1, 1)
	for typ, want := range map[uint32][]byte{
		typeBF16: bf16Bytes([]float32{1, 300, 0x1p-9, 1.0625}),
		typeE4M3: {0x38, 0x78, 0x01, 0x38},
		typeE5M2: {0x3c, 0x5d, 0x18, 0x3c},
	} {
		out := g.out(typ, 1, 4)
		g.add("gemm", nil, []*tensor{out}, x, y)
		defer func() { require.Equal(t, want, g.bytesOf(out), "type %d", typ) }()
	}
	g.run()
}

func BenchmarkGemms(b *testing.B) {
	const size = 256
	s := open(b, gaudi2)
	for _, c := range []struct {
		name string
		typ  uint32
	}{{"fp8", typeE4M3}, {"bf16", typeBF16}} {
		b.Run(c.name, func(b *testing.B) {
			g := s.graph(gaudi2)
			zero := make([]byte, size*size*typeSizes[c.typ])
			x, y, out := g.in(c.typ, zero, size, size), g.in(c.typ, zero, size, size), g.out(typeF32, size, size)
			g.add("gemm", nil, []*tensor{out}, x, y)
			_, recipe := g.compile()
			g.place()
			_, list, n := g.launchList(recipe)
			for b.Loop() {
				g.do("synLaunch", s.stream, list, uint64(n), 0, recipe, 0)
				g.do("synStreamSynchronize", s.stream)
			}
			b.ReportMetric(2*size*size*size*float64(b.N)/b.Elapsed().Seconds()/1e9, "GFLOP/s")
		})
	}
}
