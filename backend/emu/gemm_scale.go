package emu

import (
	"fmt"

	"octet/fp8"
)

// This file implements block scales: scales of blocks of an operand, which change along k
// and therefore multiply partial sums. backend.MatMul defines the result. k is divided
// into runs inside which no scale changes.

// blockScales are the scales of a stored operand, one for each block of rows × cols
// elements, row-major; 0 means all rows or columns. The zero value is one scale of 1.
type blockScales struct {
	rows, cols int
	across     int // blocks side by side
	f32        []float32
	e8m0       []uint8
}

// at returns the scale of element (i, j).
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

// runScales are the scales of a GEMM with block scales.
type runScales struct {
	inside bool // scales multiply products inside a device model's sums, see fuse.go
	run    int  // elements of k in a run; all of k if no scale changes along it
	a, b   blockScales
	sa, sb []float32 // scales of op(A) [runs, ma] and op(B) [runs, nb], expanded in each run
	ma, nb int
	expand func(worker, run int)
}

// scaleBlocks gives the operands block scales. If promote is not 0, runs have at most
// promote elements of k.
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
		return fmt.Errorf("gemm: scales change every %d elements of k, and no block of k can hold whole runs: use blocks of 128 or 32", run)
	}
	kernel := g.kernel
	g.pairs, g.choice = nil, nil // a run may have an odd number of elements
	g.plan = planGemm(kernel, g.m, g.n, g.k, unit, g.transA, g.pool.size())
	g.plan.lenAcc += kernel.tall * kernel.nr // for the sum of one run
	if g.fused != nil {
		g.fused.makeRoom(&g.plan)
	}
	g.pool.reserve(g.plan.scratch())
	s := &runScales{inside: inside, run: run, a: a, b: b, ma: roundUp(g.m, kernel.mr), nb: roundUp(g.n, kernel.nr)}
	runs := ceilDiv(g.k, run)
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

// commonDivisor returns the greatest common divisor; every number divides 0.
func commonDivisor(a, b int) int {
	for b > 0 {
		a, b = b, a%b
	}
	return a
}

// alongK returns the number of elements of k that share a scale; 0: all.
func alongK(s blockScales, trans bool) int {
	if trans {
		return s.rows
	}
	return s.cols
}

// expandScales writes the scales of the operand's rows or columns at l of k.
func (g *gemm) expandScales(dst []float32, s *blockScales, l int, trans bool) {
	for i := range dst {
		if trans {
			dst[i] = s.at(l, i)
		} else {
			dst[i] = s.at(i, l)
		}
	}
}

// neutralZeros sets the scale of blocks of zeros to 1 if it is E8M0's minimum, 2^-127.
// Casts give blocks of zeros that scale, and fast kernels cannot handle it.
func neutralZeros(scales []float32, x matrix, l, width int, trans bool) {
	step, next := 1, x.ld
	if trans {
		step, next = next, step
	}
	for i, f := range scales {
		zeros := f == 0x1p-127
		for r := 0; zeros && r < width; r++ {
			zeros = x.u8[i*next+(l+r)*step]&0x7f == 0
		}
		if zeros {
			scales[i] = 1
		}
	}
}

// multiplyRuns is kernel.multiply for operands with block scales, for the tiles at row i
// and column j of the output and k from l on. tile has the sum of the runs before l; part
// is scratch for the sum of one run.
func (g *gemm) multiplyRuns(worker, depth, rows int, a []float32, step, stepK int, panel, tile, part []float32, i, j, l int) {
	s, kern := g.scales, g.kernel
	if s.inside {
		g.fused.setScales(worker, s, i, rows, j, min(kern.nr, g.n-j), l/s.run, ceilDiv(depth, s.run))
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

// addRun adds a run's sum to a tile, as gemmKernel.addScaled.
func (k *gemmKernel) addRun(acc, part []float32, rows int, sa, sb []float32, first bool) {
	if k.addScaled != nil {
		k.addScaled(acc, part, rows, sa, sb, first)
	} else {
		addScaledRows(acc, part, k.nr, rows, sa, sb, first)
	}
}

// addScaledRows is addScaled for tiles of nr columns. The conversions forbid the compiler
// to fuse.
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
