package emu

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/backend/arith"
	"octet/fp8"
)

// sums are what the kernels must be able to: those of the models, and others.
var sums = []arith.Sum{
	{Group: 32, Bits: 13, Kept: 13, LeastE4M3: -6, LeastE5M2: -14},
	{Group: 16, Bits: 13, Kept: 13, LeastE4M3: -6, LeastE5M2: -14},
	{Group: 32, Bits: 25, Kept: 23, LeastE4M3: -6, LeastE5M2: -14},
	{Group: 16, Bits: 24, Kept: 23, Apart: true, LeastE4M3: -14, LeastE5M2: -14},
	{Group: 8, Bits: 24, Kept: 23, LeastE4M3: -9, LeastE5M2: -16},
	{Group: 5, Bits: 20, Kept: 17, LeastE4M3: -7, LeastE5M2: -15},
}

// codesOf fills a matrix with codes of finite numbers: any, or of normal noise.
func codesOf(r *rand.Rand, d fp8.DType, rows, cols int, any bool) matrix {
	m := newMatrix(d, rows, cols, cols+3)
	for i := range m.u8 {
		code := uint8(r.Uint32())
		if !any {
			code = uint8(d.Nearest(float32(r.NormFloat64()), fp8.Saturate))
		}
		if v := float64(d.Float32(uint32(code))); math.IsNaN(v) || math.IsInf(v, 0) {
			code = 0
		}
		m.u8[i] = code
	}
	return m
}

func element(m matrix, trans bool, i, l int) float32 {
	if trans {
		i, l = l, i
	}
	return m.dtype.Float32(uint32(m.u8[i*m.ld+l]))
}

// expectFused is op(A)·op(B), sum by sum.
func expectFused(s arith.Sum, promote int, a matrix, transA bool, b matrix, transB bool, m, n, k int) []float32 {
	out := make([]float32, 0, m*n)
	if promote == 0 {
		promote = k
	}
	var x, y []float32
	for i := range m {
		for j := range n {
			total := float32(0)
			for from := 0; from < k; from += promote {
				part, end := float32(0), min(k, from+promote)
				for l := from; l < end; l += s.Group {
					x, y = x[:0], y[:0]
					for q := l; q < min(end, l+s.Group); q++ {
						x, y = append(x, element(a, transA, i, q)), append(y, element(b, transB, q, j))
					}
					part = s.Fuse(x, y, s.Least(a.dtype), s.Least(b.dtype), part)
				}
				total += part
			}
			out = append(out, total)
		}
	}
	return out
}

// sameBits compares numbers; every NaN is like every other.
func sameBits(t *testing.T, want, got []float32, about string) {
	t.Helper()
	for i, x := range want {
		if y := got[i]; math.Float32bits(x) != math.Float32bits(y) && (x == x || y == y) {
			t.Fatalf("%s: element %d is %g, not %g", about, i, y, x)
		}
	}
}

// Every kernel gives the sums of package arith, whatever the shape, the
// orientation and the number of threads.
func TestFusedGemm(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	shapes := [][3]int{{1, 1, 1}, {3, 5, 40}, {20, 40, 300}, {150, 9, 290}}
	if testing.Short() {
		shapes = shapes[:2]
	}
	for _, s := range sums {
		for i, fuse := range fuseKernels() {
			for _, base := range gemmKernels()[min(i, len(gemmKernels())-1):] {
				if base.nr%fuse.width > 0 {
					continue
				}
				for _, shape := range shapes {
					m, n, k := shape[0], shape[1], shape[2]
					for range 2 {
						transA, transB := r.IntN(2) > 0, r.IntN(2) > 0
						dtypes := [2]fp8.DType{[]fp8.DType{fp8.E4M3, fp8.E5M2}[r.IntN(2)], []fp8.DType{fp8.E4M3, fp8.E5M2, fp8.E4M3IEEE}[r.IntN(3)]}
						promote := []int{0, 128}[r.IntN(2)]
						stored := func(d fp8.DType, rows, cols int, trans bool) matrix {
							if trans {
								rows, cols = cols, rows
							}
							return codesOf(r, d, rows, cols, r.IntN(2) == 0)
						}
						a, b := stored(dtypes[0], m, k, transA), stored(dtypes[1], k, n, transB)
						out := newMatrix(fp8.F32, m, n, n)
						p := newPool(1 + r.IntN(3))
						g, err := newFusedGemmWith(fuse, base, s, p, a, transA, b, transB, out)
						require.NoError(t, err)
						if promote > 0 {
							require.NoError(t, g.scaleBlocks(blockScales{}, blockScales{}, promote))
						}
						g.run(epilogue{alpha: 1})
						p.close()
						want := expectFused(s, promote, a, transA, b, transB, m, n, k)
						sameBits(t, want, out.f32[:m*n], fmt.Sprint(s, base.name, fuse.width, shape, transA, transB, dtypes, promote))
					}
				}
			}
		}
	}
}

// A NaN or an infinity goes where it belongs, and nowhere else.
func TestFusedGemmSpecials(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	m, n, k := 20, 40, 300
	if testing.Short() {
		m, n = 3, 5
	}
	for _, s := range sums {
		for _, promote := range []int{0, 128} {
			for trial := range 4 {
				a, b := codesOf(r, fp8.E5M2, m, k, false), codesOf(r, fp8.E5M2, k, n, false)
				special := []uint8{0x7c, 0xfc, 0x7f}
				for range 1 + trial/2 {
					a.u8[r.IntN(m)*a.ld+r.IntN(k)] = special[r.IntN(3)]
					b.u8[r.IntN(k)*b.ld+r.IntN(n)] = special[r.IntN(3)]
				}
				out := newMatrix(fp8.F32, m, n, n)
				p := newPool(2)
				g, err := fusedGemm(s)(p, a, false, b, false, out)
				require.NoError(t, err)
				if promote > 0 {
					require.NoError(t, g.scaleBlocks(blockScales{}, blockScales{}, promote))
				}
				for range 2 { // nothing stays behind
					g.run(epilogue{alpha: 1})
					want := expectFused(s, promote, a, false, b, false, m, n, k)
					sameBits(t, want, out.f32[:m*n], fmt.Sprint(s, promote, trial))
				}
				p.close()
			}
		}
	}
}
