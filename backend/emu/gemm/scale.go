package gemm

import (
	"fmt"

	"octet/backend/emu/memory"
	"octet/backend/emu/pool"
)

// This file implements block scales that change along k and multiply partial sums.
// backend.MatMul defines the result, and which scales multiply elements instead. k is
// divided into runs inside which no scale changes.

// runScales are the scales of a GEMM with block scales.
type runScales struct {
	inside bool // scales multiply products inside a device model's sums, see fuse.go
	run    int  // elements of k in a run; all of k if no scale changes along it
	a, b   memory.BlockScales
	sa, sb []float32 // scales of op(A) [runs, ma] and op(B) [runs, nb], expanded in each run
	ma, nb int
	expand func(worker, run int)
}

// ScaleBlocks gives the operands block scales. If promote is not 0, runs have at most
// promote elements of k.
func (g *GEMM) ScaleBlocks(a, b memory.BlockScales, promote int) error {
	if g.fused == nil && promote == 0 && scalesElements(g.a.DType, a, g.b.DType, b) {
		g.scaleElements(a, b)
		return nil
	}
	alongA, alongB := alongK(a, g.transA), alongK(b, !g.transB)
	run := commonDivisor(commonDivisor(promote, alongA), alongB)
	inside := g.fused != nil && g.fused.scaleInside(a, b, alongA, alongB)
	if run == 0 || run > g.K {
		run = g.K
	}
	unit := DepthUnit
	if run < g.K {
		for unit%run != 0 || inside && unit%g.fused.sum.Group != 0 {
			unit += DepthUnit
		}
	}
	if unit > rowLimits.k {
		return fmt.Errorf("gemm: scales change every %d elements of k, and no block of k can hold whole runs: use blocks of 128 or 32", run)
	}
	kernel := g.kernel
	g.pairs, g.choice = nil, nil // a run may have an odd number of elements
	unit = g.integerUnit(run, unit)
	g.plan = planBlocks(kernel, g.M, g.N, g.words(g.K), unit, g.transA, g.pool.Size())
	g.plan.lenAcc += kernel.tall * kernel.NR // for the sum of one run
	if g.fused != nil {
		g.fused.makeRoom(&g.plan)
	}
	g.pool.Reserve(g.plan.scratch())
	s := &runScales{inside: inside, run: run, a: a, b: b, ma: pool.RoundUp(g.M, kernel.MR), nb: pool.RoundUp(g.N, kernel.NR)}
	runs := pool.CeilDiv(g.K, run)
	s.sa, s.sb = make([]float32, runs*s.ma), make([]float32, runs*s.nb)
	s.expand = func(_, r int) {
		expandScales(s.sa[r*s.ma:][:g.M], &s.a, 0, r*run, g.transA)
		expandScales(s.sb[r*s.nb:][:g.N], &s.b, 0, r*run, !g.transB)
		if inside && g.fused.sum.Exact == 0 {
			width := min(run, g.K-r*run)
			neutralZeros(s.sa[r*s.ma:][:g.M], g.a, r*run, width, g.transA)
			neutralZeros(s.sb[r*s.nb:][:g.N], g.b, r*run, width, !g.transB)
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
func alongK(s memory.BlockScales, trans bool) int {
	if trans {
		return s.Rows
	}
	return s.Cols
}

// expandScales writes the scales at l of k of the operand's rows, from row i on, or of its
// columns if trans.
func expandScales(dst []float32, s *memory.BlockScales, i, l int, trans bool) {
	block, next := s.Rows, s.Across // of rows that share a scale; from one block to the next
	if trans {
		block, next = s.Cols, 1
	}
	if block == 1 && s.Codes != nil { // MX, NVFP4
		codes, values := s.Codes[scaleIndex(s, i, l, trans):], s.DType.Table()
		for r := range dst {
			dst[r] = values[codes[r*next]]
		}
		return
	}
	for r := range dst {
		dst[r] = s.Block(scaleIndex(s, i+r, l, trans))
	}
}

// scaleIndex returns the block at l of k of an operand's row i, or of its column i if trans.
func scaleIndex(s *memory.BlockScales, i, l int, trans bool) int {
	if trans {
		return s.Index(l, i)
	}
	return s.Index(i, l)
}

// neutralZeros sets the scale of blocks of zeros to 1 if it is E8M0's minimum, 2^-127.
// Casts give blocks of zeros that scale, and fast kernels cannot handle it.
func neutralZeros(scales []float32, x memory.Matrix, l, width int, trans bool) {
	step, next := 1, x.LD
	if trans {
		step, next = next, step
	}
	for i, f := range scales {
		zeros := f == 0x1p-127
		for r := 0; zeros && r < width; r++ {
			zeros = isZero(&x, i*next+(l+r)*step)
		}
		if zeros {
			scales[i] = 1
		}
	}
}

// multiplyRuns is kernel.multiply for operands with block scales, for the tiles at row i
// and column j of the output and k from l on. tile has the sum of the runs before l; part
// is scratch for the sum of one run.
func (g *GEMM) multiplyRuns(worker, depth, rows int, a []float32, step, stepK int, panel, tile, part []float32, i, j, l int) {
	s, kern := g.scales, g.kernel
	if s.inside {
		g.fused.setScales(worker, s, i, rows, j, min(kern.NR, g.N-j), l/s.run, pool.CeilDiv(depth, s.run))
		g.multiply(worker, depth, rows, a, step, stepK, panel, tile, l > 0)
		return
	}
	if s.run == g.K {
		g.sum(worker, depth, rows, a, step, stepK, panel, tile, part, l)
		if l+depth == g.words(g.K) {
			kern.addRun(tile, tile, rows, s.sa[i:], s.sb[j:], true)
		}
		return
	}
	run := g.words(s.run)
	for from := 0; from < depth; from += run {
		r := (l + from) / run
		g.multiply(worker, min(run, depth-from), rows, a[from*stepK:], step, stepK, panel[from*kern.NR:], part, false)
		if g.integers != nil {
			fromIntegers(part[:rows*kern.NR])
		}
		kern.addRun(tile, part, rows, s.sa[r*s.ma+i:], s.sb[r*s.nb+j:], r == 0)
	}
}

// addRun adds a run's sum to a tile, as Kernel.addScaled.
func (k *Kernel) addRun(acc, part []float32, rows int, sa, sb []float32, first bool) {
	if k.addScaled != nil {
		k.addScaled(acc, part, rows, sa, sb, first)
	} else {
		addScaledRows(acc, part, k.NR, rows, sa, sb, first)
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
