package gemm

import (
	"fmt"
	"math"
	"math/big"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/backend"
	"octet/backend/emu/memory"
	"octet/backend/emu/pool"
	"octet/fp8"
)

// randomBlocks draws block scales of format d for a stored matrix.
func randomBlocks(r *rand.Rand, m memory.Matrix, block backend.ScaleBlock, d fp8.DType) memory.BlockScales {
	s := memory.BlockScales{Rows: block.Rows, Cols: block.Cols, DType: d}
	down, across := block.ScaleShape(m.Rows, m.Cols)
	s.Across = across
	for range down * across {
		switch x := float32(math.Exp(r.NormFloat64())); d {
		case fp8.F32:
			s.F32 = append(s.F32, x)
		case fp8.E8M0:
			s.Codes = append(s.Codes, uint8(120+r.IntN(15)))
		default:
			s.Codes = append(s.Codes, uint8(d.Nearest(x, fp8.Saturate)))
		}
	}
	return s
}

// scaledChain computes an element as backend.MatMul defines it.
func scaledChain(dot func(a, b []float32) float32, a, b []float32, run int, sa, sb func(l int) float32) (v float32) {
	for l := 0; l < len(a); l += run {
		end := min(l+run, len(a))
		part := dot(a[l:end], b[l:end])
		x := float32(part * float32(sa(l)*sb(l)))
		if l == 0 {
			v = x
		} else {
			v += x
		}
	}
	return v
}

// blockCase is a GEMM with block scales, each block as op(A) or op(B) has it.
type blockCase struct {
	a, b   backend.ScaleBlock
	run    int       // elements of k in a run of joined scales; 0: all of k
	scales fp8.DType // of the scales
	from   []fp8.DType
}

// Every granularity, in every orientation, with every kernel and several workers, gives
// the bits of the definition.
func TestGemmBlockScaleBits(t *testing.T) {
	parametric, err := fp8.ParseDType("e2m4")
	require.NoError(t, err)
	smallElements := []fp8.DType{fp8.E2M1, fp8.E2M3, fp8.E3M2, fp8.E4M3, fp8.E5M2}
	integers := []fp8.DType{fp8.INT8, fp8.INT4}
	along := func(n int) backend.ScaleBlock { return backend.ScaleBlock{Rows: 1, Cols: n} }
	down := func(n int) backend.ScaleBlock { return backend.ScaleBlock{Rows: n, Cols: 1} }
	blocks := []blockCase{
		{backend.PerRow, backend.PerColumn, 0, fp8.F32, exactFormats},
		{backend.PerColumn, backend.PerRow, 1, fp8.F32, exactFormats},
		{backend.Block1x128, backend.Block128x128, 128, fp8.F32, exactFormats},
		{backend.Block128x128, backend.Block128x128, 128, fp8.F32, exactFormats},
		{backend.PerTensor, backend.Block128x128, 128, fp8.F32, exactFormats},
		{backend.ScaleBlock{Rows: 5, Cols: 24}, backend.ScaleBlock{Rows: 48, Cols: 3}, 24, fp8.F32, exactFormats},
		{along(32), down(32), 32, fp8.E8M0, append(smallElements, parametric, fp8.E4M3IEEE)},
		{along(128), down(32), 32, fp8.E8M0, smallElements},
		{along(16), down(16), 16, fp8.E4M3, smallElements},
		{along(16), backend.ScaleBlock{Rows: 16, Cols: 16}, 16, fp8.E4M3, smallElements},
		{along(32), down(32), 32, fp8.E4M3, []fp8.DType{parametric}}, // nine bits: joined
		{backend.PerColumn, backend.PerRow, 1, fp8.E8M0, smallElements},
		{backend.PerTensor, backend.PerTensor, 0, fp8.E8M0, smallElements},
		{backend.PerRow, backend.PerTensor, 0, fp8.F32, integers},
		{along(32), down(32), 32, fp8.E8M0, integers},
		{along(16), down(128), 16, fp8.E4M3, integers},
		{along(5000), down(7), 7, fp8.E5M2, smallElements},
	}
	r := rand.New(rand.NewPCG(21, 22))
	for _, shape := range [][3]int{{1, 1, 2}, {5, 33, 31}, {31, 67, 129}, {17, 40, 1300}} {
		for _, block := range blocks {
			for trans := range 4 {
				c := gemmCase{
					m: shape[0], n: shape[1], k: shape[2], a: block.from[r.IntN(len(block.from))], b: block.from[r.IntN(len(block.from))],
					out: fp8.F32, transA: trans&1 > 0, transB: trans&2 > 0, alpha: 1,
				}
				checkBlocks(t, testedKernels(), c, block, r)
			}
		}
	}
}

// checkBlocks compares every element of a GEMM with block scales with the definition.
func checkBlocks(t *testing.T, kernels []*Kernel, c gemmCase, block blockCase, r *rand.Rand) {
	t.Helper()
	transposed := func(b backend.ScaleBlock, swap bool) backend.ScaleBlock {
		if swap {
			b.Rows, b.Cols = b.Cols, b.Rows
		}
		return b
	}
	blockA, blockB := transposed(block.a, c.transA), transposed(block.b, c.transB)
	name := fmt.Sprintf("%s blocks %s %s of %s", c, blockA, blockB, block.scales)
	a, b, out, e := c.operands(r)
	scaleA, scaleB := randomBlocks(r, a, blockA, block.scales), randomBlocks(r, b, blockB, block.scales)
	rows, cols := rowsOf(a, c.transA, false), rowsOf(b, c.transB, true)
	inside := c.a.ScaledIsBF16(block.scales) && c.b.ScaledIsBF16(block.scales)
	if inside {
		scaleRows(rows, &scaleA, c.transA)
		scaleRows(cols, &scaleB, !c.transB)
	}
	run := block.run
	if run == 0 {
		run = c.k
	}
	dot := chain
	if c.a.IsInteger() {
		dot = integerDot
	}
	want := make([]float32, c.m*c.n)
	for i := range want {
		i, j := i/c.n, i%c.n
		if inside {
			want[i*c.n+j] = chain(rows[i], cols[j])
			continue
		}
		want[i*c.n+j] = scaledChain(dot, rows[i], cols[j], run,
			func(l int) float32 { return scaleOf(&scaleA, i, l, c.transA) },
			func(l int) float32 { return scaleOf(&scaleB, j, l, !c.transB) })
	}
	for _, kernel := range kernels {
		for workers := 1; workers <= 3; workers++ {
			p := pool.New(workers)
			g, err := NewWith(kernel, p, a, c.transA, b, c.transB, out)
			require.NoError(t, err)
			require.NoError(t, g.ScaleBlocks(scaleA, scaleB, 0))
			require.Equal(t, inside, g.scaled != nil)
			g.Run(e)
			p.Close()
			for at, x := range want {
				i, j := at/c.n, at%c.n
				if got := out.F32[i*out.LD+j]; !same(fp8.F32, math.Float32bits(x), math.Float32bits(got)) {
					require.Failf(t, "wrong bits", "%s: %s: %d workers: [%d,%d] is %g, want %g", kernel.Name, name, workers, i, j, got, x)
				}
			}
		}
	}
}

// scaleOf returns the scale of row i of an operand at l of k, or of column i if trans.
func scaleOf(s *memory.BlockScales, i, l int, trans bool) float32 {
	if trans {
		return s.Element(l, i)
	}
	return s.Element(i, l)
}

// scaleRows multiplies rows along k by their scales.
func scaleRows(rows [][]float32, s *memory.BlockScales, trans bool) {
	for i, row := range rows {
		for l := range row {
			row[l] *= scaleOf(s, i, l, trans)
		}
	}
}

// chainFMA is chain without a rounding of the products, from exact sums.
func chainFMA(a, b []float32) (acc float32) {
	for l := range a {
		x, y := float64(a[l]), float64(b[l])
		if x-x != 0 || y-y != 0 || acc-acc != 0 {
			acc = float32(float64(acc) + x*y)
			continue
		}
		exact := new(big.Float).SetPrec(600).SetFloat64(x * y)
		acc, _ = exact.Add(exact, big.NewFloat(float64(acc))).Float32()
	}
	return acc
}

// chainsFMA returns chainFMA of every row with every column.
func chainsFMA(rows, cols [][]float32) (list []float32) {
	for _, a := range rows {
		for _, b := range cols {
			list = append(list, chainFMA(a, b))
		}
	}
	return list
}

// sameElements requires the bits of want, except those of NaN.
func sameElements(t *testing.T, want []float32, out memory.Matrix, about string) {
	t.Helper()
	for at, x := range want {
		i, j := at/out.Cols, at%out.Cols
		if got := out.F32[i*out.LD+j]; !same(fp8.F32, math.Float32bits(x), math.Float32bits(got)) {
			t.Fatalf("%s: [%d,%d] is %g, want %g", about, i, j, got, x)
		}
	}
}

// Scaled elements, products and sums at the limits of FP32 have the bits of FMAs.
func TestGemmBlockScaleLimits(t *testing.T) {
	const m, n, k = 20, 37, 96
	r := rand.New(rand.NewPCG(25, 26))
	for _, d := range []fp8.DType{fp8.E4M3, fp8.E5M2, fp8.E2M1} {
		for _, limits := range [][2]int{{0, 0}, {0, 3}, {50, 70}, {60, 120}, {180, 250}, {0, 255}} {
			for trans := range 4 {
				c := gemmCase{m: m, n: n, k: k, a: d, b: fp8.E4M3, out: fp8.F32, transA: trans&1 > 0, transB: trans&2 > 0, alpha: 1}
				a, b, out, e := c.operands(r)
				scales := func(x memory.Matrix) memory.BlockScales {
					s := randomBlocks(r, x, backend.Block1x32, fp8.E8M0)
					for i := range s.Codes {
						s.Codes[i] = uint8(limits[0] + r.IntN(limits[1]-limits[0]+1))
					}
					return s
				}
				scaleA, scaleB := scales(a), scales(b)
				rows, cols := rowsOf(a, c.transA, false), rowsOf(b, c.transB, true)
				scaleRows(rows, &scaleA, c.transA)
				scaleRows(cols, &scaleB, !c.transB)
				want := chainsFMA(rows, cols)
				p := pool.New(1)
				for _, kernel := range testedKernels() {
					g, err := NewWith(kernel, p, a, c.transA, b, c.transB, out)
					require.NoError(t, err)
					require.NoError(t, g.ScaleBlocks(scaleA, scaleB, 0))
					g.Run(e)
					sameElements(t, want, out, fmt.Sprint(kernel.Name, c, limits))
				}
				p.Close()
			}
		}
	}
}

func TestGemmBlocksTooLong(t *testing.T) {
	p := pool.New(1)
	defer p.Close()
	const k = 3000
	g, err := New(p, newMatrix(fp8.E4M3, 1, k, k), false, newMatrix(fp8.E4M3, k, 1, 1), false, newMatrix(fp8.F32, 1, 1, 1))
	require.NoError(t, err)
	require.ErrorContains(t, g.ScaleBlocks(memory.BlockScales{Cols: 1500}, memory.BlockScales{}, 0), "every 1500 elements of k")
	require.NoError(t, g.ScaleBlocks(memory.BlockScales{Cols: k}, memory.BlockScales{}, 0))
}

func TestGemmBlocksAllocateNothing(t *testing.T) {
	r := rand.New(rand.NewPCG(23, 24))
	p := pool.New(2)
	defer p.Close()
	c := gemmCase{m: 40, n: 70, k: 600, a: fp8.E4M3, b: fp8.E4M3, out: fp8.BF16, transB: true, alpha: 1}
	a, b, out, e := c.operands(r)
	g, err := New(p, a, false, b, true, out)
	require.NoError(t, err)
	require.NoError(t, g.ScaleBlocks(randomBlocks(r, a, backend.Block1x128, fp8.F32), randomBlocks(r, b, backend.Block128x128, fp8.F32), 0))
	require.Zero(t, testing.AllocsPerRun(5, func() { g.Run(e) }))
	require.NoError(t, g.ScaleBlocks(randomBlocks(r, a, backend.Block1x32, fp8.E8M0), randomBlocks(r, b, backend.Block1x32, fp8.E8M0), 0))
	require.Zero(t, testing.AllocsPerRun(5, func() { g.Run(e) }))
}
