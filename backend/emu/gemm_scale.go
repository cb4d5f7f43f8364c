package emu

import (
	"fmt"

	"octet/fp8"
)

// This file is scales by blocks: factors that belong to tiles of an operand and
// change along k, so that they cannot leave the sum. backend.MatMul says what
// is computed; here k has runs inside which no factor changes.

// blockScales is the factors of a stored operand, one for each tile of
// rows × cols elements, row-major; 0 rows or columns are all of them. The zero
// value is a factor of 1.
type blockScales struct {
	rows, cols int
	across     int // tiles side by side
	f32        []float32
	e8m0       []uint8
}

// at is the factor of element (i, j).
func (s *blockScales) at(i, j int) float32 {
	t := 0
	if s.rows > 0 {
		t = i / s.rows * s.across
	}
	if s.cols > 0 {
		t += j / s.cols
	}
	switch {
	case s.f32 != nil:
		return s.f32[t]
	case s.e8m0 != nil:
		return fp8.E8M0.Float32(uint32(s.e8m0[t]))
	}
	return 1
}

// runScales is the scales of a product with blocks.
type runScales struct {
	inside bool // they multiply products inside the sums of a device model, see fuse.go
	run    int  // how many elements of k share their factors; all if they never change
	a, b   blockScales
	sa, sb []float32 // factors of op(A) [runs, ma] and op(B) [runs, nb], read when it runs
	ma, nb int
	expand func(worker, run int)
}

// scaleBlocks gives the operands scales by blocks. Runs have at most promote elements
// of k, if that is not 0.
func (g *gemm) scaleBlocks(a, b blockScales, promote int) error {
	alongA, alongB := alongK(a, g.transA), alongK(b, !g.transB)
	run := commonDivisor(commonDivisor(promote, alongA), alongB)
	inside := g.fused != nil && g.fused.sum.MX && a.e8m0 != nil && b.e8m0 != nil &&
		alongA == g.fused.sum.Group && alongB == g.fused.sum.Group
	if run == 0 || run > g.k {
		run = g.k
	}
	unit := depthUnit
	if run < g.k {
		for unit%run != 0 {
			unit += depthUnit
		}
	}
	if unit > rowLimits.k {
		return fmt.Errorf("gemm: scales that change every %d elements of k: no block of k holds whole runs (128, 32)", run)
	}
	kernel := g.kernel
	g.pairs, g.choice = nil, nil // a run may have an odd number of elements
	g.plan = planGemm(kernel, g.m, g.n, g.k, unit, g.transA, g.pool.size())
	g.plan.lenAcc += kernel.tall * kernel.nr // where a run's sum is
	if g.fused != nil {
		g.fused.makeRoom(&g.plan)
	}
	g.pool.reserve(g.plan.scratch())
	s := &runScales{inside: inside, run: run, a: a, b: b, ma: roundUp(g.m, kernel.mr), nb: roundUp(g.n, kernel.nr)}
	runs := parts(g.k, run)
	s.sa, s.sb = make([]float32, runs*s.ma), make([]float32, runs*s.nb)
	s.expand = func(_, r int) {
		g.expandScales(s.sa[r*s.ma:][:g.m], &s.a, r*run, g.transA)
		g.expandScales(s.sb[r*s.nb:][:g.n], &s.b, r*run, !g.transB)
		if inside {
			width := min(run, g.k-r*run)
			neutralZeros(s.sa[r*s.ma:][:g.m], g.a, r*run, width, g.transA)
			neutralZeros(s.sb[r*s.nb:][:g.n], g.b, r*run, width, !g.transB)
		}
	}
	g.scales = s
	g.task = g.runTask
	return nil
}

// commonDivisor is the greatest one; 0 is divisible by all.
func commonDivisor(a, b int) int {
	for b > 0 {
		a, b = b, a%b
	}
	return a
}

// alongK is how many elements of k share a factor; 0 is all.
func alongK(s blockScales, trans bool) int {
	if trans {
		return s.rows
	}
	return s.cols
}

// expandScales writes the factors of the operand's vectors at l.
func (g *gemm) expandScales(dst []float32, s *blockScales, l int, trans bool) {
	for i := range dst {
		if trans {
			dst[i] = s.at(l, i)
		} else {
			dst[i] = s.at(i, l)
		}
	}
}

// neutralZeros makes the factors of vectors that are zero from l on 1, where they are
// E8M0's least: a cast gives that to blocks of zeros, and it is beyond the range of
// fast kernels.
func neutralZeros(factors []float32, x matrix, l, width int, trans bool) {
	step, next := 1, x.ld
	if trans {
		step, next = next, step
	}
	for i, f := range factors {
		zeros := f == 0x1p-127
		for r := 0; zeros && r < width; r++ {
			zeros = x.u8[i*next+(l+r)*step]&0x7f == 0
		}
		if zeros {
			factors[i] = 1
		}
	}
}

// multiplyRuns is kernel.multiply for operands with scales by block: the tiles
// at row i and column j of the output, k from l on. tile has the sum of the
// runs before l, part is for the sum of one.
func (g *gemm) multiplyRuns(worker, depth, rows int, a []float32, step, stepK int, panel, tile, part []float32, i, j, l int) {
	s, kern := g.scales, g.kernel
	if s.inside {
		g.fused.factors(worker, s, i, rows, j, min(kern.nr, g.n-j), l/s.run, parts(depth, s.run))
		g.multiply(worker, depth, rows, a, step, stepK, panel, tile, l > 0)
		return
	}
	if s.run == g.k {
		g.multiply(worker, depth, rows, a, step, stepK, panel, tile, l > 0)
		if l+depth == g.k {
			kern.addRun(tile, tile, rows, s.sa[i:], s.sb[j:], true)
		}
		return
	}
	for from := 0; from < depth; from += s.run {
		r := (l + from) / s.run
		g.multiply(worker, min(s.run, depth-from), rows, a[from*stepK:], step, stepK, panel[from*kern.nr:], part, false)
		kern.addRun(tile, part, rows, s.sa[r*s.ma+i:], s.sb[r*s.nb+j:], r == 0)
	}
}

// addRun adds a run's sum to a tile, see addScaled.
func (k *gemmKernel) addRun(acc, part []float32, rows int, sa, sb []float32, first bool) {
	if k.addScaled != nil {
		k.addScaled(acc, part, rows, sa, sb, first)
	} else {
		addScaledRows(acc, part, k.nr, rows, sa, sb, first)
	}
}

// addScaledRows is addScaled for tiles of nr columns. The conversions keep a
// compiler from fusing.
func addScaledRows(acc, part []float32, nr, rows int, sa, sb []float32, first bool) {
	sb = sb[:nr]
	for i, s := range sa[:rows] {
		to, from := acc[i*nr:][:nr], part[i*nr:][:nr]
		for j, f := range sb {
			v := float32(from[j] * float32(s*f))
			if !first {
				v += to[j]
			}
			to[j] = v
		}
	}
}
