package gemm

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/backend"
	"octet/backend/emu/memory"
	"octet/backend/emu/pool"
	"octet/fp8"
)

// Block scales multiply elements before the sums of AMX's definition: blocks that are longer
// than a tile, end inside a tile or inside a pair, at moderate scales and at those that leave
// the range of normal numbers.
func TestAMXScales(t *testing.T) {
	r := rand.New(rand.NewPCG(39, 40))
	elements := []fp8.DType{fp8.E2M1, fp8.E2M3, fp8.E4M3, fp8.E5M2}
	blocks := []backend.ScaleBlock{{Rows: 1, Cols: 32}, {Rows: 1, Cols: 16}, {Rows: 16, Cols: 16}, {Rows: 3, Cols: 7}, {Rows: 1, Cols: 48}, {Rows: 1, Cols: 128}, {Rows: 1}, {Cols: 1}, {}}
	for _, shape := range [][3]int{{1, 1, 1}, {3, 20, 20}, {17, 20, 16}, {17, 33, 33}, {17, 33, 48}, {40, 70, 131}, {5, 35, 1100}} {
		for _, scales := range []fp8.DType{fp8.E8M0, fp8.E4M3} {
			for trans := range 8 {
				c := gemmCase{
					m: shape[0], n: shape[1], k: shape[2], a: elements[r.IntN(4)], b: elements[r.IntN(4)], out: fp8.F32,
					transA: trans&1 > 0, transB: trans&2 > 0, alpha: 1,
				}
				if scales == fp8.E4M3 {
					c.a, c.b = elements[r.IntN(2)], fp8.E2M1
				}
				a, b, out, e := c.operands(r)
				draw := func(x memory.Matrix) memory.BlockScales {
					s := randomBlocks(r, x, blocks[r.IntN(len(blocks))], scales)
					for i := range s.Codes {
						if trans >= 4 && scales == fp8.E8M0 {
							s.Codes[i] = uint8(r.IntN(8) + []int{0, 60, 185, 247}[r.IntN(4)])
						}
						if trans >= 4 && i == len(s.Codes)/2 && len(s.Codes) > 1 { // NaN
							s.Codes[i] = uint8(scales.Nearest(float32(math.NaN()), fp8.Saturate))
						}
					}
					return s
				}
				scaleA, scaleB := draw(a), draw(b)
				rows, cols := rowsOf(a, c.transA, false), rowsOf(b, c.transB, true)
				scaleRows(rows, &scaleA, c.transA)
				scaleRows(cols, &scaleB, !c.transB)
				p := pool.New(1 + trans%2)
				for _, kernel := range amxKernels() {
					g, err := newAMXGemmWith(kernel, p, a, c.transA, b, c.transB, out)
					require.NoError(t, err)
					require.NoError(t, g.ScaleBlocks(scaleA, scaleB, 0))
					g.Run(e)
					for i := range c.m {
						for j := range c.n {
							want, got := amxDot(0, rows[i], cols[j]), out.F32[i*out.LD+j]
							require.True(t, same(fp8.F32, math.Float32bits(want), math.Float32bits(got)), "%s: %s, %s %+v, %+v: [%d,%d] is %g, want %g",
								kernel.name, c, scales, scaleA, scaleB, i, j, got, want)
						}
					}
				}
				p.Close()
			}
		}
	}
}

// Scales that multiply sums change the arithmetic to that of New.
func TestAMXScalesOfSums(t *testing.T) {
	r := rand.New(rand.NewPCG(41, 42))
	c := gemmCase{m: 20, n: 40, k: 200, a: fp8.E4M3, b: fp8.E4M3, out: fp8.F32, transB: true, alpha: 1}
	a, b, out, e := c.operands(r)
	scaleA, scaleB := randomBlocks(r, a, backend.Block1x128, fp8.F32), randomBlocks(r, b, backend.Block128x128, fp8.F32)
	p := pool.New(2)
	defer p.Close()
	var codes [2][]uint32
	for i, multiply := range []func(*pool.Pool, memory.Matrix, bool, memory.Matrix, bool, memory.Matrix) (*GEMM, error){New, NewAMX} {
		g, err := multiply(p, a, false, b, true, out)
		require.NoError(t, err)
		require.NoError(t, g.ScaleBlocks(scaleA, scaleB, 0))
		g.Run(e)
		codes[i] = allCodes(out)
	}
	require.Equal(t, codes[0], codes[1])
}

func TestAMXScalesAllocateNothing(t *testing.T) {
	r := rand.New(rand.NewPCG(43, 44))
	p := pool.New(2)
	defer p.Close()
	c := gemmCase{m: 40, n: 70, k: 600, a: fp8.E2M1, b: fp8.E2M1, out: fp8.BF16, transB: true, alpha: 1}
	a, b, out, e := c.operands(r)
	g, err := NewAMX(p, a, false, b, true, out)
	require.NoError(t, err)
	require.NoError(t, g.ScaleBlocks(randomBlocks(r, a, backend.Block1x32, fp8.E8M0), randomBlocks(r, b, backend.Block1x32, fp8.E8M0), 0))
	require.Zero(t, testing.AllocsPerRun(5, func() { g.Run(e) }))
}
