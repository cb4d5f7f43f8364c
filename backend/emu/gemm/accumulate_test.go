package gemm

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/backend"
	"octet/backend/arith"
	"octet/backend/emu/memory"
	"octet/backend/emu/pool"
	"octet/fp8"
)

// narrowSum returns the sum of a·b in bits bits, as exact arithmetic gives it.
func narrowSum(bits int, saturate bool, a, b []float32) float32 {
	half := int64(1) << (bits - 1)
	sum := int64(0)
	for l := range a {
		sum += int64(a[l]) * int64(b[l])
		if saturate {
			sum = max(-half, min(half-1, sum))
		}
	}
	sum = (sum + half) % (2 * half)
	if sum < 0 {
		sum += 2 * half
	}
	return float32(sum - half)
}

// Accumulators of few bits give the sums of exact arithmetic, in every orientation, with every
// kernel, of packed codes too. Epilogues follow.
func TestAccumulate(t *testing.T) {
	r := rand.New(rand.NewPCG(61, 62))
	for _, shape := range [][3]int{{1, 1, 1}, {3, 40, 130}, {20, 35, 300}} {
		for _, formats := range [][2]fp8.DType{{fp8.INT8, fp8.INT8}, {fp8.INT4, fp8.INT8}, {fp8.INT4, fp8.INT4}, {fp8.INT8, fp8.INT4.InBytes()}} {
			for trans := range 4 {
				c := gemmCase{
					m: shape[0], n: shape[1], k: shape[2], a: formats[0], b: formats[1], out: fp8.F32,
					transA: trans&1 > 0, transB: trans&2 > 0, alpha: 1.5,
				}
				a, b, out, e := c.operands(r)
				rows, cols := rowsOf(a, c.transA, false), rowsOf(b, c.transB, true)
				for _, kernel := range testedKernels() {
					acc := arith.Accumulator{Bits: 8 + r.IntN(25), Saturate: r.IntN(2) == 0}
					p := pool.New(1 + r.IntN(2))
					g, err := NewWith(kernel, p, a, c.transA, b, c.transB, out)
					require.NoError(t, err)
					require.NoError(t, g.Accumulate(acc))
					g.Run(e)
					p.Close()
					for i := range c.m {
						for j := range c.n {
							require.Equal(t, narrowSum(acc.Bits, acc.Saturate, rows[i], cols[j])*c.alpha, out.F32[i*out.LD+j], "%s: %s: %v [%d,%d]", kernel.Name, c, acc, i, j)
						}
					}
				}
			}
		}
	}
}

// With block scales each run of k has a sum of its own.
func TestAccumulateBlocks(t *testing.T) {
	r := rand.New(rand.NewPCG(63, 64))
	const m, n, k = 20, 35, 200
	for _, block := range []backend.ScaleBlock{backend.Block1x32, backend.Block1x128, {Rows: 1, Cols: 0}} {
		a, b, out := newMatrix(fp8.INT8, m, k, k), newMatrix(fp8.INT8, n, k, k), newMatrix(fp8.F32, m, n, n)
		for _, x := range []memory.Matrix{a, b} {
			for i := range x.U8 {
				x.U8[i] = uint8(fp8.INT8.Nearest(float32(r.NormFloat64()*40), fp8.Saturate))
			}
		}
		scaleA, scaleB := randomBlocks(r, a, block, fp8.F32), randomBlocks(r, b, block, fp8.F32)
		p := pool.New(2)
		g, err := New(p, a, false, b, true, out)
		require.NoError(t, err)
		require.NoError(t, g.ScaleBlocks(scaleA, scaleB, 0))
		require.NoError(t, g.Accumulate(arith.Accumulator{Bits: 14}))
		g.Run(Epilogue{})
		require.Zero(t, testing.AllocsPerRun(3, func() { g.Run(Epilogue{}) }))
		p.Close()
		rows, cols := rowsOf(a, false, false), rowsOf(b, true, true)
		run := block.Cols
		if run == 0 {
			run = k
		}
		for i := range m {
			for j := range n {
				total := float32(0)
				for l := 0; l < k; l += run {
					end := min(k, l+run)
					total += float32(narrowSum(14, false, rows[i][l:end], cols[j][l:end]) * float32(scaleA.Element(i, l)*scaleB.Element(j, l)))
				}
				require.Equal(t, total, out.F32[i*n+j], fmt.Sprint(block, i, j))
			}
		}
	}
}

// Unconstrained INT8 operands with K = 352, x with a scale for each row, overflow 16 bits in
// about a sixth of the sums. Wrapped, the sums are worthless; saturated, they are less wrong. No
// sum overflows 18 bits.
func TestAccumulatorsOverflow(t *testing.T) {
	r := rand.New(rand.NewPCG(65, 66))
	const m, n, k = 200, 128, 352
	a, b, out := newMatrix(fp8.INT8, m, k, k), newMatrix(fp8.INT8, n, k, k), newMatrix(fp8.F32, m, n, n)
	draw := func(codes []uint8) {
		values := make([]float32, len(codes))
		for i := range values {
			values[i] = float32(r.NormFloat64())
		}
		fp8.Quantize8(codes, values, fp8.INT8, 127/fp8.Amax(values), false)
	}
	for row := range slices.Chunk(a.U8[:m*k], k) {
		draw(row)
	}
	draw(b.U8[:n*k])
	p := pool.New(2)
	defer p.Close()
	multiply := func(acc *arith.Accumulator) []float32 {
		g, err := New(p, a, false, b, true, out)
		require.NoError(t, err)
		if acc != nil {
			require.NoError(t, g.Accumulate(*acc))
		}
		g.Run(Epilogue{})
		return slices.Clone(out.F32[:m*n])
	}
	exact := multiply(nil)
	compare := func(bits int, saturate bool) (wrong, relative float64) {
		square := 0.0
		for i, x := range multiply(&arith.Accumulator{Bits: bits, Saturate: saturate}) {
			difference := float64(x) - float64(exact[i])
			relative += difference * difference
			square += float64(exact[i]) * float64(exact[i])
			if difference != 0 {
				wrong++
			}
		}
		return wrong / float64(len(exact)), math.Sqrt(relative / square)
	}
	wrong, relative := compare(16, false)
	t.Log(wrong, relative)
	require.InDelta(t, 0.17, wrong, 0.03)
	require.InDelta(t, 1.13, relative, 0.06)
	_, relative = compare(16, true)
	t.Log(relative)
	require.InDelta(t, 0.37, relative, 0.04)
	wrong, _ = compare(18, false)
	require.Zero(t, wrong)
	wrong, _ = compare(18, true)
	require.Zero(t, wrong)
}

func TestAccumulateRefusesFloats(t *testing.T) {
	p := pool.New(1)
	defer p.Close()
	x := newMatrix(fp8.E4M3, 2, 2, 2)
	g, err := New(p, x, false, x, true, newMatrix(fp8.F32, 2, 2, 2))
	require.NoError(t, err)
	require.EqualError(t, g.Accumulate(arith.Accumulator{Bits: 16}), "gemm: an accumulator of bits adds up products of integers")
}
