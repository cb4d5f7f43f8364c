package attention

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/backend/emu/cast"
	"octet/backend/emu/gemm"
	"octet/backend/emu/memory"
	"octet/backend/emu/pool"
	"octet/backend/emu/simd"
	"octet/fp8"
)

// amxCase is a shape of one sequence and one KV head.
type amxCase struct{ n, perKV, dim int } // tokens, query heads, head size

var amxCases = []amxCase{{1, 1, 32}, {5, 1, 8}, {32, 1, 64}, {67, 3, 40}, {128, 1, 128}, {100, 2, 34}, {3, 80, 16}, {300, 1, 64}, {200, 3, 34}}

// noise returns n×cols values of BF16.
func noise(r *rand.Rand, n, cols int) memory.Matrix {
	m := floats(n, cols)
	for i := range m.F32 {
		m.F32[i] = float32(r.NormFloat64())
	}
	return rounded(m)
}

func floats(n, cols int) memory.Matrix {
	return memory.Matrix{DType: fp8.F32, F32: make([]float32, n*cols), Rows: n, Cols: cols, LD: cols}
}

// rounded returns m in BF16.
func rounded(m memory.Matrix) memory.Matrix {
	b := memory.Matrix{DType: fp8.BF16, U16: make([]uint16, len(m.F32)), Rows: m.Rows, Cols: m.Cols, LD: m.LD}
	fp8.EncodeBF16(b.U16, m.F32)
	return b
}

// amxProduct multiplies by the GEMM in AMX's arithmetic.
func amxProduct(t *testing.T, p *pool.Pool, a memory.Matrix, transA bool, b memory.Matrix, transB bool) memory.Matrix {
	m, n := a.Rows, b.Cols
	if transA {
		m = a.Cols
	}
	if transB {
		n = b.Rows
	}
	out := floats(m, n)
	g, err := gemm.NewAMX(p, a, transA, b, transB, out)
	require.NoError(t, err)
	g.Run(gemm.Epilogue{})
	return out
}

// byHead returns a [n, perKV·dim] matrix as [n·perKV, dim]: row r is that of query r/perKV, head
// r%perKV.
func byHead(m memory.Matrix, dim int) memory.Matrix {
	m.Rows, m.Cols, m.LD = m.Rows*m.Cols/dim, dim, dim
	return m
}

// store returns an output that stores FP32.
func store(p *pool.Pool, m memory.Matrix) *cast.Output {
	return cast.NewOutput(p, []cast.Cast{{Out: m}})
}

// fillWithNaN fills the scratch of all workers.
func fillWithNaN(p *pool.Pool) {
	for _, scratch := range p.Scratch {
		for i := range scratch {
			scratch[i] = float32(math.NaN())
		}
	}
}

// amxOperands are those of a case. Row r of byHead is that of query r/perKV.
type amxOperands struct {
	amxCase
	heads
	q, k, v, do, scores memory.Matrix
	visible             []int // keys that each row sees
}

func newAMXOperands(t *testing.T, p *pool.Pool, c amxCase, r *rand.Rand) *amxOperands {
	o := &amxOperands{amxCase: c, q: noise(r, c.n, c.perKV*c.dim), k: noise(r, c.n, c.dim), v: noise(r, c.n, c.dim), do: noise(r, c.n, c.perKV*c.dim)}
	o.heads = newHeads(FP32(&gemm.Go), &o.q, &o.k, nil, 1, c.dim)
	o.scores = amxProduct(t, p, byHead(o.q, c.dim), false, o.k, true)
	for i := range c.n * c.perKV {
		o.visible = append(o.visible, i/c.perKV+1)
	}
	return o
}

// rows returns m with rows that softmax kernels take.
func (o *amxOperands) rows(m memory.Matrix) memory.Matrix {
	x := floats(m.Rows, pool.RoundUp(m.Cols, 16))
	for i := range m.Rows {
		copy(x.F32[i*x.LD:], m.F32[i*m.LD:][:m.Cols])
	}
	x.Cols = m.Cols
	return x
}

// forward computes out by GEMMs from weights relative to the maximum of all visible scores, as
// attention does if there is one block of keys.
func (o *amxOperands) forward(t *testing.T, p *pool.Pool) (out memory.Matrix, lse []float32) {
	weights, total := o.rows(o.scores), make([]float32, o.scores.Rows)
	lse = make([]float32, len(total))
	for i, n := range o.visible {
		row := weights.F32[i*weights.LD:][:weights.LD]
		top := []float32{simd.Max(row[:n]) * o.scale2}
		simd.WeighRows(row, weights.LD, weights.LD, o.visible[i:i+1], o.scale2, top, total[i:i+1])
		lse[o.lseIndex(0, 0, i)] = float32(float64(top[0])*math.Ln2 + math.Log(float64(total[i])))
	}
	out = amxProduct(t, p, rounded(weights), false, o.v, false)
	for i, sum := range total {
		simd.Scale(out.F32[i*out.LD:][:out.Cols], 1/sum)
	}
	return out, lse
}

// backward computes the gradients by GEMMs.
func (o *amxOperands) backward(t *testing.T, p *pool.Pool, out memory.Matrix, lse []float32) (dq, dk, dv memory.Matrix) {
	do := byHead(o.do, o.amxCase.dim)
	probabilities, gradients := o.rows(o.scores), o.rows(amxProduct(t, p, do, false, o.v, true))
	for i := range o.visible {
		x, y := make([]float32, do.Cols), make([]float32, do.Cols)
		fp8.DecodeBF16(x, do.U16[i*do.LD:][:do.Cols])
		fp8.DecodeBF16(y, out.U16[i*do.LD:][:do.Cols])
		at, ld := i*probabilities.LD, probabilities.LD
		lse2, delta := []float32{lse[o.lseIndex(0, 0, i)] * math.Log2E}, []float32{simd.Dot(x, y)}
		simd.ScoreGradientRows(probabilities.F32[at:], gradients.F32[at:], ld, ld, o.visible[i:i+1], o.scale2, o.scale, lse2, delta)
	}
	dv = amxProduct(t, p, rounded(probabilities), true, do, false)
	dk = amxProduct(t, p, rounded(gradients), true, byHead(o.q, do.Cols), false)
	dq = amxProduct(t, p, rounded(gradients), false, o.k, false)
	return dq, dk, dv
}

// The weights of attention with AMX are those of FP32 arithmetic on scores from a GEMM in AMX's
// arithmetic, and the products with them are such GEMMs.
func TestAMXAttention(t *testing.T) {
	p := pool.New(2)
	defer p.Close()
	r := rand.New(rand.NewPCG(41, 42))
	for _, c := range amxCases {
		o := newAMXOperands(t, p, c, r)
		wantOut, wantLSE := o.forward(t, p)
		for _, blocks := range gemm.AMXKernels() {
			what := fmt.Sprintf("%s: %d tokens, %d heads of %d", blocks.Name(), c.n, c.perKV, c.dim)
			out, lse := floats(c.n, c.perKV*c.dim), make([]float32, c.n*c.perKV)
			forward := New(p, AMX(blocks), Operands{Q: o.q, K: o.k, V: o.v, Out: store(p, out), LSE: lse, Batch: 1, HeadDim: c.dim})
			fillWithNaN(p)
			forward()
			if c.n <= keyBlock {
				sameFloats(t, wantOut.F32, out.F32, what+": out")
				sameFloats(t, wantLSE, lse, what+": LSE")
			} else {
				require.InDeltaSlice(t, wantOut.F32, out.F32, 0.02, what)
				require.InDeltaSlice(t, wantLSE, lse, 1e-5, what)
			}
			stored := rounded(out)
			wantDQ, wantDK, wantDV := o.backward(t, p, stored, lse)
			for _, split := range []bool{false, true} {
				dq, dk, dv := floats(c.n, c.perKV*c.dim), floats(c.n, c.dim), floats(c.n, c.dim)
				backward := NewGrad(p, AMX(blocks), GradOperands{
					DOut: o.do, Q: o.q, K: o.k, V: o.v, O: stored, LSE: lse, Delta: make([]float32, len(lse)),
					DQ: store(p, dq), DK: store(p, dk), DV: store(p, dv), Batch: 1, HeadDim: c.dim,
				}, split)
				fillWithNaN(p)
				backward()
				sameFloats(t, wantDV.F32, dv.F32, what+": dV")
				sameFloats(t, wantDK.F32, dk.F32, what+": dK")
				sameFloats(t, wantDQ.F32, dq.F32, what+": dQ")
			}
		}
	}
}

// Of several blocks of keys and documents, all versions and numbers of threads give the same
// bits, near those of FP32. Scratch that holds NaN does not matter.
func TestAMXAttentionBits(t *testing.T) {
	r := rand.New(rand.NewPCG(43, 44))
	for _, c := range []amxCase{{150, 3, 34}, {290, 1, 64}} {
		q, k, v := noise(r, c.n, c.perKV*c.dim), noise(r, c.n, c.dim), noise(r, c.n, c.dim)
		do := noise(r, c.n, c.perKV*c.dim)
		start := make([]int32, c.n)
		for i := range start {
			start[i] = int32(i / 137 * 137)
		}
		for _, starts := range [][]int32{nil, start} {
			results := func(threads int, unit Unit, split bool) [][]float32 {
				p := pool.New(threads)
				defer p.Close()
				out, lse := floats(c.n, c.perKV*c.dim), make([]float32, c.n*c.perKV)
				dq, dk, dv := floats(c.n, c.perKV*c.dim), floats(c.n, c.dim), floats(c.n, c.dim)
				forward := New(p, unit, Operands{Q: q, K: k, V: v, Out: store(p, out), LSE: lse, Start: starts, Batch: 1, HeadDim: c.dim})
				backward := NewGrad(p, unit, GradOperands{
					DOut: do, Q: q, K: k, V: v, O: out, LSE: lse, Delta: make([]float32, len(lse)), Start: starts,
					DQ: store(p, dq), DK: store(p, dk), DV: store(p, dv), Batch: 1, HeadDim: c.dim,
				}, split)
				fillWithNaN(p)
				forward()
				backward()
				return [][]float32{out.F32, dq.F32, dk.F32, dv.F32}
			}
			fp32 := results(1, FP32(&gemm.Go), false)
			var want [][]float32
			for _, blocks := range gemm.AMXKernels() {
				for i, split := range []bool{false, true} {
					got := results(1+i, AMX(blocks), split)
					if want == nil {
						want = got
					}
					for j := range want {
						require.InDeltaSlice(t, fp32[j], want[j], 0.1)
						sameFloats(t, want[j], got[j], fmt.Sprintf("%s: result %d", blocks.Name(), j))
					}
				}
			}
		}
	}
}
