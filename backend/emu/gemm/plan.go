package gemm

import "octet/backend/emu/pool"

// blockLimits are the maximum blocks: k elements along k, b elements of a packed block
// of B, and m rows of a task that stores accumulators between blocks of k.
type blockLimits struct{ k, b, m int }

// In FP32 a block of B is 1.5 MB, which leaves room for a few slabs of A in a second-level
// cache of 2 MB. A slab is decoded just before use and passes through the first-level
// cache; if A is stored transposed, kernel.block rows are decoded together, because they
// share cache lines. Up to this k there is one block: beyond it, storing accumulators
// costs less than a narrower block of B.
var rowLimits = blockLimits{1024, 384 << 10, 1050}

// For longer k, where accumulators are stored between blocks.
var longLimits = blockLimits{512, 256 << 10, 1050}

// Registers of half the width load B twice as often, so a panel should stay in the
// first-level cache while kernel.block rows of A are multiplied by it; 24 KB fit beside a
// slab. Panels are loaded into it so seldom that the block of B, 2.3 MB, may be in the
// third-level cache.
var narrowLimits = blockLimits{384, 576 << 10, 1050}

func (k *Kernel) limits(depth int) blockLimits {
	switch {
	case k.narrow:
		return narrowLimits
	case depth > rowLimits.k:
		return longLimits
	}
	return rowLimits
}

// lineFloats is the size of a cache line in floats.
const lineFloats = pool.CacheLine / 4

// minTaskWork is the minimum number of multiplications of a task: about 3 µs with the
// fastest kernel.
const minTaskWork = 1 << 18

// DepthUnit divides kc: kernels transpose this many elements of k at a time.
const DepthUnit = 16

// blocking is the blocking of one GEMM. Only the number of tasks depends on the number
// of workers. No result depends on the plan.
type blocking struct {
	mt, nt   int  // rows and columns of a task
	mc, kc   int  // rows and columns of a block of op(A)
	lda, ldt int  // leading dimensions of a block of A and of rows of B to transpose
	panel    int  // distance of the panels of a block of B, in floats
	blocked  bool // k has several blocks; accumulators are stored between them

	lenA, lenB, lenT, lenAcc int // scratch, in floats
}

// planBlocks plans a GEMM. Blocks of k are multiples of unit, a multiple of DepthUnit.
func planBlocks(kernel *Kernel, m, n, k, unit int, transA bool, workers int) blocking {
	mr, nr := kernel.MR, kernel.NR
	limits := kernel.limits(k)
	p := blocking{kc: even(k, max(1, limits.k/unit)*unit, unit), mc: mr}
	p.blocked = p.kc < k
	c := taskCut{
		slabs: max(1, pool.CeilDiv(m, mr)), panels: max(1, pool.CeilDiv(n, nr)),
		maxSlabs: 1, maxPanels: max(1, limits.b/(p.kc*nr)),
		minTiles: pool.CeilDiv(minTaskWork, mr*nr*max(k, 1)), workers: workers, keepsB: !p.blocked,
	}
	switch {
	case p.blocked:
		c.maxSlabs = limits.m / mr
	case transA || kernel.narrow:
		c.maxSlabs = kernel.block / mr
	}
	slabs, panels := c.best()
	p.mt, p.nt = slabs*mr, panels*nr
	if transA || kernel.narrow {
		p.mc = min(p.mt, kernel.block)
	}

	// Rows are decoded nr floats at a time. The extra cache line of a row avoids powers of
	// two, which map all rows to the same cache sets. The extra row of a panel does so for
	// the same row of all panels, which is written at once.
	depth := pool.RoundUp(p.kc, nr)
	p.ldt = depth + lineFloats
	if transA {
		p.lda = pool.RoundUp(p.mc, nr) + lineFloats
		p.lenA = max(p.kc*p.lda, pool.RoundUp(p.mc, DepthUnit)*p.ldt) // decodeA, transposeA
	} else {
		p.lda = p.ldt
		p.lenA = p.mc * p.lda
	}
	p.panel = (p.kc + 1) * nr
	p.lenB = p.nt / nr * p.panel
	if m <= streamRows { // runStream decodes all of A
		p.lenA = max(p.lenA, streamRows*(pool.RoundUp(k, nr)+lineFloats))
	}
	p.lenT = max(kernel.TransposeRows*max(p.ldt, p.lda), streamDepth*nr/4)
	p.lenAcc = kernel.tall * nr
	if p.blocked {
		p.lenAcc = pool.RoundUp(p.mt, mr) * pool.RoundUp(p.nt, nr)
	}
	return p
}

// taskCut cuts slabs × panels tiles into tasks of at most maxSlabs × maxPanels tiles and
// at least minTiles, if the GEMM has as many.
type taskCut struct {
	slabs, panels       int
	maxSlabs, maxPanels int
	minTiles, workers   int
	keepsB              bool // a worker packs a block of B once, not for each task
}

// best returns the slabs and panels of a task that minimize the estimated time of equally
// loaded workers, whose tasks are neighbours along the rows. Decoding a panel takes about
// four fifths of the time of a tile, decoding a slab a quarter.
func (c *taskCut) best() (slabs, panels int) {
	best := 0
	for across := pool.CeilDiv(c.panels, c.maxPanels); across <= c.panels; across = finer(c.panels, across) {
		q := pool.CeilDiv(c.panels, across)
		minSlabs := min(c.slabs, pool.CeilDiv(c.minTiles, q))
		if best > 0 && minSlabs*q < c.minTiles {
			break
		}
		blocks := pool.CeilDiv(c.panels, q)
		for down := pool.CeilDiv(c.slabs, max(minSlabs, c.maxSlabs)); down <= c.slabs; down = finer(c.slabs, down) {
			s := pool.CeilDiv(c.slabs, down)
			if best > 0 && (s < minSlabs || pool.CeilDiv(c.slabs, s)*blocks > 8*c.workers && s < c.maxSlabs) {
				break
			}
			tasks := pool.CeilDiv(pool.CeilDiv(c.slabs, s)*blocks, c.workers)
			packs := tasks
			if c.keepsB {
				packs = pool.CeilDiv(blocks, c.workers)
			}
			cost := tasks*s*(20*q+5) + packs*16*q
			if best == 0 || cost < best {
				best, slabs, panels = cost, s, q
			}
		}
	}
	return slabs, panels
}

// finer returns the next larger number of parts of n that makes the parts smaller, or
// n+1. Skipping the others leaves about 2·√n candidates for best.
func finer(n, count int) int {
	size := pool.CeilDiv(n, count)
	if size <= 1 {
		return n + 1
	}
	return pool.CeilDiv(n, size-1)
}

func (p *blocking) tasks(m, n int) int { return pool.CeilDiv(m, p.mt) * pool.CeilDiv(n, p.nt) }

func (p *blocking) scratch() int { return p.lenA + p.lenB + p.lenT + p.lenAcc }

// carve divides a worker's scratch.
func (p *blocking) carve(s []float32) (a, b, tmp, acc []float32) {
	a, s = s[:p.lenA], s[p.lenA:]
	b, s = s[:p.lenB], s[p.lenB:]
	tmp, s = s[:p.lenT], s[p.lenT:]
	return a, b, tmp, s[:p.lenAcc]
}

// Scratch returns the scratch of one worker for a GEMM of m×k by k×n, in floats.
func Scratch(m, n, k int, transA bool, workers int) int {
	kernel := Kernels()[0]
	scratch := func(k int) int {
		plan := planBlocks(kernel, m, n, k, DepthUnit, transA, workers)
		return plan.scratch()
	}
	largest := scratch(k)
	if kernel.Pairs != nil {
		largest = max(largest, scratch(pool.CeilDiv(k, 2)))
	}
	if kernel.Integers != nil {
		largest = max(largest, scratch(pool.CeilDiv(k, kernel.Integers.size)))
	}
	return largest
}

// even divides n into the fewest parts of at most limit, and returns their size, rounded
// up to a multiple of unit. Only the last part may be smaller.
func even(n, limit, unit int) int {
	count := max(1, pool.CeilDiv(n, limit))
	return pool.RoundUp(max(1, pool.CeilDiv(n, count)), unit)
}
