package gemm

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/backend"
	"octet/backend/arith"
	"octet/backend/emu/memory"
	"octet/backend/emu/pool"
	"octet/fp8"
)

// sums are the sums that the tests run: those of the models, and others.
var sums = []arith.Sum{
	{Group: 32, Bits: 13, Kept: 13, MinExpE4M3: -6, MinExpE5M2: -14},
	{Group: 16, Bits: 13, Kept: 13, MinExpE4M3: -6, MinExpE5M2: -14},
	{Group: 32, Bits: 25, Kept: 23, MinExpE4M3: -6, MinExpE5M2: -14},
	{Group: 16, Bits: 24, Kept: 23, AddendLast: true, MinExpE4M3: -14, MinExpE5M2: -14},
	{Group: 8, Bits: 24, Kept: 23, MinExpE4M3: -9, MinExpE5M2: -16},
	{Group: 5, Bits: 20, Kept: 17, MinExpE4M3: -7, MinExpE5M2: -15},
}

// codesOf returns a matrix of finite codes: any codes if all, else normal noise.
func codesOf(r *rand.Rand, d fp8.DType, rows, cols int, all bool) memory.Matrix {
	m := newMatrix(d, rows, cols, cols+3)
	for i := range m.U8 {
		code := uint8(r.Uint32())
		if !all {
			code = uint8(d.Nearest(float32(r.NormFloat64()), fp8.Saturate))
		}
		if v := float64(d.Float32(uint32(code))); math.IsNaN(v) || math.IsInf(v, 0) {
			code = 0
		}
		m.U8[i] = code
	}
	return m
}

func element(m memory.Matrix, trans bool, i, l int) float32 {
	if trans {
		i, l = l, i
	}
	return m.DType.Float32(uint32(m.U8[i*m.LD+l]))
}

// expectFused computes op(A)·op(B) with arith.Sum.Fuse.
func expectFused(s arith.Sum, promote int, a memory.Matrix, transA bool, b memory.Matrix, transB bool, m, n, k int) []float32 {
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
					part = s.Fuse(x, y, s.MinPower(a.DType), s.MinPower(b.DType), 1, part)
				}
				if total += part; total != total {
					total = math.Float32frombits(0x7fffffff)
				}
			}
			out = append(out, total)
		}
	}
	return out
}

// sameBits requires equal bits, those of NaN included.
func sameBits(t *testing.T, want, got []float32, about string) {
	t.Helper()
	for i, x := range want {
		if x, y := math.Float32bits(x), math.Float32bits(got[i]); x != y {
			t.Fatalf("%s: element %d is %#x, expected %#x", about, i, y, x)
		}
	}
}

// forFuseKernels calls f with each kernel of the sums, and each that it can be combined with.
func forFuseKernels(f func(fuse *fuseKernel, base *Kernel)) {
	for i, fuse := range fuseKernels() {
		for _, base := range Kernels()[min(i, len(Kernels())-1):] {
			if base.NR%fuse.width == 0 {
				f(fuse, base)
			}
		}
	}
}

// Every kernel gives the sums of package arith, for every shape, orientation and number of
// threads.
func TestFusedGemm(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	shapes := [][3]int{{1, 1, 1}, {3, 5, 40}, {20, 40, 300}, {150, 9, 290}}
	if testing.Short() {
		shapes = shapes[:2]
	}
	for _, s := range sums {
		for _, shape := range shapes {
			m, n, k := shape[0], shape[1], shape[2]
			for range 2 {
				transA, transB := r.IntN(2) > 0, r.IntN(2) > 0
				dtypes := [2]fp8.DType{[]fp8.DType{fp8.E4M3, fp8.E5M2}[r.IntN(2)], []fp8.DType{fp8.E4M3, fp8.E5M2, fp8.E4M3IEEE}[r.IntN(3)]}
				promote := []int{0, 128}[r.IntN(2)]
				stored := func(d fp8.DType, rows, cols int, trans bool) memory.Matrix {
					if trans {
						rows, cols = cols, rows
					}
					return codesOf(r, d, rows, cols, r.IntN(2) == 0)
				}
				a, b := stored(dtypes[0], m, k, transA), stored(dtypes[1], k, n, transB)
				want := expectFused(s, promote, a, transA, b, transB, m, n, k)
				forFuseKernels(func(fuse *fuseKernel, base *Kernel) {
					out := newMatrix(fp8.F32, m, n, n)
					p := pool.New(1 + r.IntN(3))
					g, err := newFusedGemmWith(fuse, base, s, p, a, transA, b, transB, out)
					require.NoError(t, err)
					if promote > 0 {
						require.NoError(t, g.ScaleBlocks(memory.BlockScales{}, memory.BlockScales{}, promote))
					}
					g.Run(Epilogue{})
					p.Close()
					sameBits(t, want, out.F32[:m*n], fmt.Sprint(s, base.Name, fuse.width, shape, transA, transB, dtypes, promote))
				})
			}
		}
	}
}

// scaleAt returns the scale of element (i, l) of op(x), for x stored transposed if trans.
func scaleAt(s memory.BlockScales, trans bool, i, l int) float64 {
	if trans {
		i, l = l, i
	}
	return float64(s.Element(i, l))
}

// Block scales inside the sums give the bits of the definition, in every orientation and
// with scales of any size, NaN and blocks of zeros included, with every kernel.
func TestFusedGemmBlockScales(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	shapes := [][3]int{{1, 1, 1}, {3, 5, 40}, {7, 40, 290}, {33, 9, 550}}
	if testing.Short() {
		shapes = shapes[:2]
	}
	draws := map[string]func() uint8{
		"near":     func() uint8 { return uint8(127 - 8 + r.IntN(16)) },
		"training": func() uint8 { return uint8(127 - 40 + r.IntN(45)) },
		"mostly far": func() uint8 {
			if r.IntN(300) > 0 {
				return uint8(127 - 8 + r.IntN(16))
			}
			return uint8(r.IntN(256))
		},
		"small":    func() uint8 { return uint8(r.IntN(100)) },
		"large":    func() uint8 { return uint8(150 + r.IntN(40)) },
		"boundary": func() uint8 { return uint8(83 + r.IntN(2)) },
		"any":      func() uint8 { return uint8(r.IntN(256)) },
	}
	for _, s := range []arith.Sum{
		{Group: 32, Bits: 25, Kept: 23, MX: true, MinExpE4M3: -6, MinExpE5M2: -14},
		{Group: 8, Bits: 13, Kept: 13, MX: true, MinExpE4M3: -9, MinExpE5M2: -16},
	} {
		for _, shape := range shapes {
			for kind, draw := range draws {
				m, n, k := shape[0], shape[1], shape[2]
				transA, transB := r.IntN(2) > 0, r.IntN(2) > 0
				dtypes := [2]fp8.DType{[]fp8.DType{fp8.E4M3, fp8.E5M2}[r.IntN(2)], fp8.E4M3}
				operand := func(d fp8.DType, rows, cols int, trans, along bool) (memory.Matrix, memory.BlockScales) {
					block := backend.ScaleBlock{Rows: 1, Cols: s.Group}
					if trans {
						rows, cols = cols, rows
					}
					if along {
						block = backend.ScaleBlock{Rows: s.Group, Cols: 1}
					}
					x := codesOf(r, d, rows, cols, r.IntN(2) == 0)
					f := randomBlocks(r, x, block, fp8.E8M0)
					for i := range f.Codes {
						f.Codes[i] = draw()
					}
					for range 3 { // blocks of zeros
						i, j := r.IntN(rows), r.IntN(cols)
						if along {
							i -= i % s.Group
						} else {
							j -= j % s.Group
						}
						f.Codes[i/block.Rows*f.Across+j/block.Cols] = 0
						for p := i; p < min(rows, i+block.Rows); p++ {
							clear(x.U8[p*x.LD+j:][:min(block.Cols, cols-j)])
						}
					}
					return x, f
				}
				a, scaleA := operand(dtypes[0], m, k, transA, transA)
				b, scaleB := operand(dtypes[1], k, n, transB, !transB)
				want := make([]float32, 0, m*n)
				for i := range m {
					for j := range n {
						c := float32(0)
						for l := 0; l < k; l += s.Group {
							var x, y []float32
							for q := l; q < min(k, l+s.Group); q++ {
								x, y = append(x, element(a, transA, i, q)), append(y, element(b, transB, q, j))
							}
							scale := scaleAt(scaleA, transA, i, l) * scaleAt(scaleB, transB, l, j)
							c = s.Fuse(x, y, s.MinPower(a.DType), s.MinPower(b.DType), scale, c)
						}
						want = append(want, c)
					}
				}
				forFuseKernels(func(fuse *fuseKernel, base *Kernel) {
					out := newMatrix(fp8.F32, m, n, n)
					p := pool.New(1 + r.IntN(3))
					g, err := newFusedGemmWith(fuse, base, s, p, a, transA, b, transB, out)
					require.NoError(t, err)
					require.NoError(t, g.ScaleBlocks(scaleA, scaleB, 0))
					require.True(t, g.scales.inside)
					g.Run(Epilogue{})
					p.Close()
					sameBits(t, want, out.F32[:m*n], fmt.Sprint(s, base.Name, fuse.width, shape, transA, transB, dtypes, kind))
				})
			}
		}
	}
}

// Scales of one operand alone, of other blocks, in FP32, or of models without MX multiply
// finished sums.
func TestBlockScalesInside(t *testing.T) {
	r := rand.New(rand.NewPCG(7, 8))
	p := pool.New(1)
	defer p.Close()
	a, b := codesOf(r, fp8.E4M3, 4, 256, false), codesOf(r, fp8.E4M3, 4, 256, false)
	with := func(s arith.Sum, blockA, blockB backend.ScaleBlock, d fp8.DType) bool {
		g, err := NewFused(s)(p, a, false, b, true, newMatrix(fp8.F32, 4, 4, 4))
		require.NoError(t, err)
		require.NoError(t, g.ScaleBlocks(randomBlocks(r, a, blockA, d), randomBlocks(r, b, blockB, d), 0))
		return g.scales.inside
	}
	s := arith.Sum{Group: 32, Bits: 25, Kept: 23, MX: true, MinExpE4M3: -6, MinExpE5M2: -14}
	require.True(t, with(s, backend.Block1x32, backend.Block1x32, fp8.E8M0))
	require.False(t, with(s, backend.Block1x32, backend.Block128x128, fp8.E8M0))
	require.False(t, with(s, backend.Block1x32, backend.Block1x32, fp8.F32))
	require.False(t, with(s, backend.Block1x128, backend.Block1x128, fp8.E8M0))
	// The minimum scale, which casts give to blocks of zeros, does not select the slow path.
	clear(a.U8[2*a.LD+32:][:32])
	scaleA, scaleB := randomBlocks(r, a, backend.Block1x32, fp8.E8M0), randomBlocks(r, b, backend.Block1x32, fp8.E8M0)
	scaleA.Codes[2*scaleA.Across+1] = 0
	for _, extreme := range []bool{false, true} {
		g, err := NewFused(s)(p, a, false, b, true, newMatrix(fp8.F32, 4, 4, 4))
		require.NoError(t, err)
		require.NoError(t, g.ScaleBlocks(scaleA, scaleB, 0))
		g.Run(Epilogue{})
		require.Equal(t, extreme, g.fused.workers[0].extreme)
		a.U8[2*a.LD+40] = 1
	}
	s.MX = false
	require.False(t, with(s, backend.Block1x32, backend.Block1x32, fp8.E8M0))
}

// NaN and infinity reach exactly the elements of the definition, in every kernel. NaNs
// have the bits of package arith, also in promoted sums.
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
					a.U8[r.IntN(m)*a.LD+r.IntN(k)] = special[r.IntN(3)]
					b.U8[r.IntN(k)*b.LD+r.IntN(n)] = special[r.IntN(3)]
				}
				// Infinities of opposite signs in two promoted sums.
				a.U8[1*a.LD+5], b.U8[5*b.LD+2] = 0x7c, 0x3c
				a.U8[1*a.LD+200], b.U8[200*b.LD+2] = 0xfc, 0x3c
				want := expectFused(s, promote, a, false, b, false, m, n, k)
				require.True(t, math.IsNaN(float64(want[n+2])))
				for i, fuse := range fuseKernels() {
					base := Kernels()[min(i, len(Kernels())-1)]
					out := newMatrix(fp8.F32, m, n, n)
					p := pool.New(2)
					g, err := newFusedGemmWith(fuse, base, s, p, a, false, b, false, out)
					require.NoError(t, err)
					if promote > 0 {
						require.NoError(t, g.ScaleBlocks(memory.BlockScales{}, memory.BlockScales{}, promote))
					}
					for range 2 { // no state is left from the first run
						g.Run(Epilogue{})
						sameBits(t, want, out.F32[:m*n], fmt.Sprint(s, base.Name, fuse.width, promote, trial))
					}
					p.Close()
				}
			}
		}
	}
}
