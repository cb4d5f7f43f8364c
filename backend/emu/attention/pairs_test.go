package attention

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/backend/emu/gemm"
	"octet/backend/emu/memory"
	"octet/backend/emu/pool"
)

// pairUnits returns the units with pairs: those of this processor, and Go's, which counts its
// multiplications.
func pairUnits(calls *int) []Unit {
	counting := gemm.GoPairs
	counting.Multiply = func(k, rows int, a []float32, step, stepK int, b, c []float32, load bool) {
		*calls++
		gemm.GoPairs.Multiply(k, rows, a, step, stepK, b, c, load)
	}
	kernel := gemm.Go
	kernel.Pairs = &counting
	units := []Unit{FP32(&kernel)}
	for _, k := range gemm.Kernels() {
		if k.Pairs != nil {
			units = append(units, FP32(k))
		}
	}
	return units
}

// tiny makes one value of m too small for pairs.
func tiny(m memory.Matrix, at int) { m.U16[at] = 20 << 7 }

// Pairs give the bits of FP32. Blocks with values too small for pairs use FP32; zeros are not
// too small.
func TestPairsInAttention(t *testing.T) {
	p := pool.New(1)
	defer p.Close()
	r := rand.New(rand.NewPCG(51, 52))
	for _, c := range []amxCase{{5, 1, 8}, {67, 3, 33}, {300, 1, 64}, {140, 2, 34}} {
		all := 0 // multiplications of Go's pairs without small values
		for small := range 6 {
			q, k, v, do := noise(r, c.n, c.perKV*c.dim), noise(r, c.n, c.dim), noise(r, c.n, c.dim), noise(r, c.n, c.perKV*c.dim)
			switch small {
			case 1:
				tiny(q, len(q.U16)/2)
			case 2:
				tiny(k, len(k.U16)-1)
			case 3:
				tiny(v, 0)
			case 4:
				tiny(do, len(do.U16)-1)
			case 5:
				clear(k.U16)
			}
			// results returns out, and the gradients of a whole and of a split backward.
			results := func(unit Unit) (list [][]float32) {
				out, lse := floats(c.n, c.perKV*c.dim), make([]float32, c.n*c.perKV)
				New(p, unit, Operands{Q: q, K: k, V: v, Out: store(p, out), LSE: lse, Batch: 1, HeadDim: c.dim})()
				list = append(list, out.F32)
				for _, split := range []bool{false, true} {
					dq, dk, dv := floats(c.n, c.perKV*c.dim), floats(c.n, c.dim), floats(c.n, c.dim)
					NewGrad(p, unit, GradOperands{
						DOut: do, Q: q, K: k, V: v, O: out, LSE: lse, Delta: make([]float32, len(lse)),
						DQ: store(p, dq), DK: store(p, dk), DV: store(p, dv), Batch: 1, HeadDim: c.dim,
					}, split)()
					list = append(list, dq.F32, dk.F32, dv.F32)
				}
				return list
			}
			calls := 0
			for i, unit := range pairUnits(&calls) {
				what := fmt.Sprintf("%s: %v, case %d", unit.kernel.Label(), c, small)
				calls = 0
				got := results(unit)
				switch used := calls; {
				case i > 0: // not Go's pairs
				case small == 0:
					all = used
					require.Positive(t, all, what)
				case small == 5:
					require.Equal(t, all, used, what)
				default:
					require.Less(t, used, all, what)
				}
				unit.pairs, calls = nil, 0
				want := results(unit)
				require.Zero(t, calls, what)
				for j := range want {
					sameFloats(t, want[j], got[j], fmt.Sprintf("%s: result %d", what, j))
				}
			}
		}
	}
}
