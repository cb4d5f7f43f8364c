package gemm

import (
	"math"

	"octet/backend/emu/memory"
	"octet/backend/emu/pool"
	"octet/backend/emu/simd"
	"octet/fp8"
)

// This file multiplies elements by their block scales when they are decoded, where
// backend.MatMul says so. A·B is then one chain over k, and the kernels are those of
// per-tensor scales, pairs (scaled_pairs.go) and AMX (amx_scales.go) too. The products of scaled
// elements are exact too, unless they leave FP32's range; there only an FMA, which rounds
// once, gives the bits of the definition.

// elementScales are the block scales of a GEMM whose operands are scaled when decoded.
type elementScales struct{ a, b memory.BlockScales }

// scalesElements reports whether a and b multiply the elements of operands of formats da
// and db.
func scalesElements(da fp8.DType, a memory.BlockScales, db fp8.DType, b memory.BlockScales) bool {
	return a.Codes != nil && b.Codes != nil && da.ScaledIsBF16(a.DType) && db.ScaledIsBF16(b.DType)
}

// scaleElements lets a and b multiply the operands' elements.
func (g *GEMM) scaleElements(a, b memory.BlockScales) {
	g.scaled, g.scales = &elementScales{a, b}, nil
	if g.amx {
		return
	}
	g.task, g.pairs, g.choice = g.runTask, nil, nil
	g.plan = planBlocks(g.kernel, g.M, g.N, g.K, DepthUnit, g.transA, g.pool.Size())
	g.pool.Reserve(g.plan.scratch())
	row := max(g.plan.mc, g.kernel.NR)
	if g.pairsTakeScales() {
		g.choosePairs(g.scaledChoice())
		row = max(row, g.choice.words.mc, g.choice.words.kc)
	}
	for w := range g.workers {
		g.workers[w].scales = make([]float32, row)
	}
}

// scaleAlong multiplies decoded elements by their scales: k runs along rows of dst, which
// are step apart. The first element is that of row i and column l of the operand.
func (g *GEMM) scaleAlong(worker int, dst []float32, step int, s *memory.BlockScales, i, l, rows, depth int) {
	if g.pairs != nil {
		g.scalePairsAlong(worker, dst, step, s, i, l, rows, depth)
		return
	}
	m := &g.workers[worker].a
	*m = magnitudes{}
	for r := range rows {
		row := dst[r*step:][:depth]
		for at := 0; at < depth; {
			n := runAt(s.Cols, l+at, depth-at)
			simd.Scale(row[at:at+n], s.Element(i+r, l+at))
			at += n
		}
		if g.kernel.multiplyFMA != nil {
			m.add(row)
		}
	}
}

// scaleDown multiplies decoded elements by their scales: dst has a row of width elements
// for each of depth elements of k, from l on; rows are step apart. In the operand as stored,
// the elements of a row are in one row, from column i on, if trans, else in one column, from
// row i on.
func (g *GEMM) scaleDown(worker int, m *magnitudes, dst []float32, step int, s *memory.BlockScales, trans bool, i, l, width, depth int) {
	scales := g.workers[worker].scales[:width]
	run := alongK(*s, trans)
	if g.pairs != nil {
		g.scalePairsDown(scales, dst, step, s, trans, i, l, depth)
		return
	}
	for at := 0; at < depth; {
		expandScales(scales, s, i, l+at, trans)
		for end := at + runAt(run, l+at, depth-at); at < end; at++ {
			row := dst[at*step:][:width]
			simd.Multiply(row, row, scales)
			if g.kernel.multiplyFMA != nil {
				m.add(row)
			}
		}
	}
}

// scalePanels is scaleDown for the panels of a block of op(B).
func (g *GEMM) scalePanels(worker int, b []float32, l, j, depth, cols int) {
	nr, m := g.kernel.NR, &g.workers[worker].b
	*m = magnitudes{}
	l, depth = g.elements(l, depth)
	for p := range pool.CeilDiv(cols, nr) {
		g.scaleDown(worker, m, b[p*g.plan.panel:], nr, &g.scaled.b, !g.transB, j+p*nr, l, min(nr, cols-p*nr), depth)
	}
}

// runAt returns the number of elements of k, at most limit, from l on that share a scale if
// run elements do; 0: all.
func runAt(run, l, limit int) int {
	if run == 0 {
		return limit
	}
	return min(run-l%run, limit)
}

// magnitudes are the limits of the nonzero magnitudes of elements; 0 without any.
type magnitudes struct{ smallest, largest float32 }

func (m *magnitudes) add(x []float32) {
	for _, v := range x {
		v = max(v, -v)
		if v > 0 && (m.smallest == 0 || v < m.smallest) {
			m.smallest = v
		}
		if v > m.largest { // not NaN
			m.largest = v
		}
	}
}

// leaveRange reports whether products of BF16 values of m and b can be subnormal or overflow,
// so that rounding can change them.
func (m magnitudes) leaveRange(b magnitudes) bool {
	low, high := float64(m.smallest)*float64(b.smallest), float64(m.largest)*float64(b.largest)
	return low > 0 && low < smallestNormal || high > math.MaxFloat32
}
