package gemm

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/backend/emu/memory"
	"octet/backend/emu/pool"
	"octet/fp8"
)

// Random codes, with or without NaN, infinities and subnormals, give the chain's bits
// for lengths of k near those of vectors.
func TestGemmPairsOfAnyCodes(t *testing.T) {
	r := rand.New(rand.NewPCG(21, 22))
	formats := []fp8.DType{fp8.E4M3, fp8.E4M3IEEE, fp8.E5M2}
	p := pool.New(1)
	defer p.Close()
	for _, k := range []int{1, 2, 3, 31, 32, 33, 63, 64, 65, 127, 129} {
		for trial := range 12 {
			m, n := 1+r.IntN(40), 1+r.IntN(70)
			transA, transB, special := trial&1 > 0, trial&2 > 0, r.IntN(3)
			fill := func(rows, cols int) memory.Matrix {
				x := newMatrix(formats[r.IntN(3)], rows, cols, cols+r.IntN(3))
				for i := range rows {
					for j := range cols {
						code := r.Uint32() & 0xff
						for special == 0 && math.IsNaN(float64(0*x.DType.Float32(code))) {
							code = r.Uint32() & 0xff
						}
						if special == 1 && r.IntN(20) > 0 {
							code &= 0x83 // zeros, subnormals, the smallest normals
						}
						setCode(x, i*x.LD+j, code)
					}
				}
				return x
			}
			a, b := fill(m, k), fill(k, n)
			if transA {
				a = fill(k, m)
			}
			if transB {
				b = fill(n, k)
			}
			rows, cols := rowsOf(a, transA, false), rowsOf(b, transB, true)
			for _, kernel := range testedKernels() {
				if kernel.Pairs == nil {
					continue
				}
				out := newMatrix(fp8.F32, m, n, n)
				g, err := NewWith(kernel, p, a, transA, b, transB, out)
				require.NoError(t, err)
				g.Run(Epilogue{})
				for i := range m {
					for j := range n {
						want, got := math.Float32bits(chain(rows[i], cols[j])), math.Float32bits(out.F32[i*n+j])
						require.True(t, same(fp8.F32, want, got), "%s: %s(%t)·%s(%t), k=%d: [%d,%d] is %#x, want %#x",
							kernel.Name, a.DType, transA, b.DType, transB, k, i, j, got, want)
					}
				}
			}
		}
	}
}

// The assembly decodes the same words as Go, also for partial vectors and for a last row
// without a second one.
func TestDecodePairs(t *testing.T) {
	r := rand.New(rand.NewPCG(23, 24))
	for _, kernel := range testedKernels() {
		if kernel.Pairs == nil {
			continue
		}
		for _, d := range exactFormats {
			for _, shape := range [][2]int{{1, 1}, {2, 2}, {3, 31}, {4, 32}, {5, 33}, {7, 63}, {8, 64}, {9, 65}, {2, 200}} {
				src := newMatrix(d, shape[0], shape[1], shape[1]+1)
				for i := range src.Rows * src.LD {
					setCode(src, i, r.Uint32()&0xffff)
				}
				for _, along := range []bool{false, true} {
					// Runs of either width are contiguous, so that the words are in row order.
					const step = 256
					want, got := make([]float32, 16*step), make([]float32, 16*step)
					GoPairs.Decode(want, step, 16, src, src.Rows, src.Cols, along)
					kernel.Pairs.Decode(got, step, kernel.NR, src, src.Rows, src.Cols, along)
					rows, cols := pool.CeilDiv(src.Rows, 2), src.Cols
					if along {
						rows, cols = src.Rows, pool.CeilDiv(src.Cols, 2)
					}
					for i := range rows {
						for j := range cols {
							require.Equal(t, math.Float32bits(want[i*step+j]), math.Float32bits(got[i*step+j]),
								"%s: %s %v, along %t: word %d, %d", kernel.Name, d, shape, along, i, j)
						}
					}
				}
			}
		}
	}
}

// BF16 operands of all magnitudes: a GEMM that may choose pairs has the bits of the same
// kernel in FP32, and chooses pairs where no sum can be subnormal.
func TestGemmChoosesPairs(t *testing.T) {
	r := rand.New(rand.NewPCG(25, 26))
	p := pool.New(2)
	defer p.Close()
	// fill returns values with exponents from smallest on, and some zeros.
	fill := func(rows, cols int, smallest uint32, width int) memory.Matrix {
		x := newMatrix(fp8.BF16, rows, cols, cols)
		for i := range rows * cols {
			code := r.Uint32()&0x807f | min(254, smallest+uint32(r.IntN(width)))<<7
			if r.IntN(9) == 0 {
				code &= 0x8000
			}
			setCode(x, i, code)
		}
		return x
	}
	for _, kernel := range testedKernels() {
		if kernel.Pairs == nil {
			continue
		}
		single := *kernel
		single.Pairs = nil
		chosen := 0
		for trial := range 300 {
			m, n, k := 1+r.IntN(30), 1+r.IntN(50), 1+r.IntN(70)
			e := uint32(r.IntN(140))
			f := uint32(138+r.IntN(8)) - e
			width := 1 + r.IntN(4)
			transA, transB := trial&1 > 0, trial&2 > 0
			a, b := fill(m, k, e, width), fill(k, n, f, width)
			if transA {
				a = fill(k, m, e, width)
			}
			if transB {
				b = fill(n, k, f, width)
			}
			setCode(a, r.IntN(a.Rows*a.Cols), e<<7)
			setCode(b, r.IntN(b.Rows*b.Cols), f<<7)
			multiply := func(kernel *Kernel) (*GEMM, []uint32) {
				out := newMatrix(fp8.F32, m, n, n)
				g, err := NewWith(kernel, p, a, transA, b, transB, out)
				require.NoError(t, err)
				g.Run(Epilogue{})
				return g, allCodes(out)
			}
			_, want := multiply(&single)
			g, got := multiply(kernel)
			for i := range want {
				require.True(t, same(fp8.F32, want[i], got[i]), "%s: smallest exponents %d and %d: %#x, want %#x", kernel.Name, e, f, got[i], want[i])
			}
			if e > 0 && f > 0 {
				require.Equal(t, e+f >= 142, g.pairs != nil, "%s: smallest exponents %d and %d", kernel.Name, e, f)
			} else {
				// The element set above is a zero; others may be subnormal.
				require.False(t, g.pairs != nil && e+f < 140)
			}
			if g.pairs != nil {
				chosen++
			}
		}
		require.Positive(t, chosen)
		require.Less(t, chosen, 300)
	}
}
