package gemm

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/backend"
	"octet/backend/emu/memory"
	"octet/backend/emu/pool"
	"octet/fp8"
)

// randomBlocks draws block scales for a stored matrix: powers of two if e8m0.
func randomBlocks(r *rand.Rand, m memory.Matrix, block backend.ScaleBlock, e8m0 bool) memory.BlockScales {
	s := memory.BlockScales{Rows: block.Rows, Cols: block.Cols}
	down, across := block.ScaleShape(m.Rows, m.Cols)
	s.Across = across
	for range down * across {
		if e8m0 {
			s.DType, s.Codes = fp8.E8M0, append(s.Codes, uint8(120+r.IntN(15)))
		} else {
			s.F32 = append(s.F32, float32(math.Exp(r.NormFloat64())))
		}
	}
	return s
}

// scaledChain computes an element as backend.MatMul defines it.
func scaledChain(a, b []float32, run int, sa, sb func(l int) float32) (v float32) {
	for l := 0; l < len(a); l += run {
		end := min(l+run, len(a))
		part := chain(a[l:end], b[l:end])
		x := float32(part * float32(sa(l)*sb(l)))
		if l == 0 {
			v = x
		} else {
			v += x
		}
	}
	return v
}

// Every granularity, in every orientation, with every kernel and several workers, gives
// the bits of the definition.
func TestGemmBlockScaleBits(t *testing.T) {
	blocks := []struct {
		a, b backend.ScaleBlock
		run  int // 0: all of k
		e8m0 bool
	}{
		{backend.PerRow, backend.PerColumn, 0, false},
		{backend.PerColumn, backend.PerRow, 1, false},
		{backend.Block1x128, backend.Block128x128, 128, false},
		{backend.Block128x128, backend.Block128x128, 128, false},
		{backend.Block1x32, backend.Block1x32, 32, true},
		{backend.Block1x128, backend.Block1x32, 32, true},
		{backend.PerTensor, backend.Block128x128, 128, false},
		{backend.ScaleBlock{Rows: 5, Cols: 24}, backend.ScaleBlock{Rows: 48, Cols: 3}, 24, false},
	}
	r := rand.New(rand.NewPCG(21, 22))
	for _, shape := range [][3]int{{1, 1, 1}, {5, 33, 31}, {31, 67, 129}, {17, 40, 1300}} {
		for _, block := range blocks {
			for trans := range 4 {
				transA, transB := trans&1 > 0, trans&2 > 0
				transposed := func(b backend.ScaleBlock, swap bool) backend.ScaleBlock {
					if swap {
						b.Rows, b.Cols = b.Cols, b.Rows
					}
					return b
				}
				// 1×32 blocks are along k in both operands; the other blocks are given as
				// op(A) and op(B) have them.
				blockA, blockB := transposed(block.a, transA), transposed(block.b, transB)
				if block.b == backend.Block1x32 {
					blockB = transposed(block.b, !transB)
				}
				c := gemmCase{
					m: shape[0], n: shape[1], k: shape[2], a: fp8.E4M3, b: exactFormats[r.IntN(len(exactFormats))],
					out: fp8.F32, transA: transA, transB: transB, alpha: 1,
				}
				name := fmt.Sprintf("%s blocks %s %s", c, blockA, blockB)
				a, b, out, e := c.operands(r)
				scaleA, scaleB := randomBlocks(r, a, blockA, block.e8m0), randomBlocks(r, b, blockB, block.e8m0)
				run := block.run
				if run == 0 {
					run = c.k
				}
				rows, cols := rowsOf(a, transA, false), rowsOf(b, transB, true)
				for _, kernel := range testedKernels() {
					for workers := 1; workers <= 3; workers++ {
						p := pool.New(workers)
						g, err := NewWith(kernel, p, a, transA, b, transB, out)
						require.NoError(t, err)
						require.NoError(t, g.ScaleBlocks(scaleA, scaleB, 0))
						g.Run(e)
						p.Close()
						for i := range c.m {
							for j := range c.n {
								want := scaledChain(rows[i], cols[j], run, func(l int) float32 {
									if transA {
										return scaleA.Element(l, i)
									}
									return scaleA.Element(i, l)
								}, func(l int) float32 {
									if transB {
										return scaleB.Element(j, l)
									}
									return scaleB.Element(l, j)
								})
								if got := out.F32[i*out.LD+j]; !same(fp8.F32, math.Float32bits(want), math.Float32bits(got)) {
									require.Failf(t, "wrong bits", "%s: %s: %d workers: [%d,%d] is %g, want %g", kernel.Name, name, workers, i, j, got, want)
								}
							}
						}
					}
				}
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
	require.NoError(t, g.ScaleBlocks(randomBlocks(r, a, backend.Block1x128, false), randomBlocks(r, b, backend.Block128x128, false), 0))
	require.Zero(t, testing.AllocsPerRun(5, func() { g.Run(e) }))
}
