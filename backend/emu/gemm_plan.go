package emu

// blockLimits are the largest blocks: columns of op(A), elements of a packed
// block of B, and rows of a task that has accumulators waiting.
type blockLimits struct{ k, b, m int }

// In FP32 a block of B is 1.5 MB, which leaves a second-level cache of 2 MB room
// for a few slabs of A. A slab, decoded just before it is used, passes through the
// first-level one; if A is stored transposed, those of kernel.block rows are
// decoded together, because they share its cache lines. k is one block up to a
// length where what waiting accumulators take from the caches costs as much as a
// block of B of more columns gains.
var rowLimits = blockLimits{1024, 384 << 10, 1050}

// Accumulators wait where k is longer.
var longLimits = blockLimits{512, 256 << 10, 1050}

// Registers of half the width ask for B twice as often, so a panel should stay in the
// first-level cache, where one of 24 KB fits beside a slab, while kernel.block rows of
// A pass by. It comes from farther away so seldom that the block of B, 2.3 MB, may be in
// the third-level cache.
var narrowLimits = blockLimits{384, 576 << 10, 1050}

func (k *gemmKernel) limits(depth int) blockLimits {
	switch {
	case k.narrow:
		return narrowLimits
	case depth > rowLimits.k:
		return longLimits
	}
	return rowLimits
}

// cacheLine is one in floats.
const cacheLine = 16

// minTaskWork is the number of multiplications below which a task is not split
// for another worker: with the fastest kernel, some 3 µs.
const minTaskWork = 1 << 18

// depthUnit is what kc is a multiple of: kernels transpose so many at a time.
const depthUnit = 16

// gemmPlan says how one product is cut. Only the number of tasks depends on
// the number of workers, and no result depends on any of it.
type gemmPlan struct {
	mt, nt   int  // rows and columns of a task
	mc, kc   int  // rows and columns of a block of op(A)
	lda, ldt int  // leading dimensions of a block of A and of rows of B to transpose
	panel    int  // from one panel of a block of B to the next, in floats
	blocked  bool // k has more than one block, so that accumulators wait

	lenA, lenB, lenT, lenAcc int // scratch, in floats
}

// planGemm plans a product whose blocks of k are multiples of unit, itself a
// multiple of depthUnit.
func planGemm(kernel *gemmKernel, m, n, k, unit int, transA bool, workers int) gemmPlan {
	mr, nr := kernel.mr, kernel.nr
	most := kernel.limits(k)
	p := gemmPlan{kc: even(k, max(1, most.k/unit)*unit, unit), mc: mr}
	p.blocked = p.kc < k
	c := taskCut{
		slabs: max(1, parts(m, mr)), panels: max(1, parts(n, nr)),
		mostSlabs: 1, mostPanels: max(1, most.b/(p.kc*nr)),
		fewest: parts(minTaskWork, mr*nr*max(k, 1)), workers: workers, keepsB: !p.blocked,
	}
	switch {
	case p.blocked:
		c.mostSlabs = most.m / mr
	case transA || kernel.narrow:
		c.mostSlabs = kernel.block / mr
	}
	slabs, panels := c.best()
	p.mt, p.nt = slabs*mr, panels*nr
	if transA || kernel.narrow {
		p.mc = min(p.mt, kernel.block)
	}

	// Rows are decoded nr floats at a time. The odd cache line keeps a power
	// of two from mapping all rows to the same lines of a cache, the odd row of a
	// panel one row of all panels, which are written one after the other.
	depth := roundUp(p.kc, nr)
	p.ldt = depth + cacheLine
	if transA {
		p.lda = roundUp(p.mc, nr) + cacheLine
		p.lenA = p.kc * p.lda
	} else {
		p.lda = p.ldt
		p.lenA = p.mc * p.lda
	}
	p.panel = (p.kc + 1) * nr
	p.lenB = p.nt / nr * p.panel
	if m <= streamRows { // runStream decodes all of A
		p.lenA = max(p.lenA, streamRows*(roundUp(k, nr)+cacheLine))
	}
	p.lenT = max(kernel.group*p.ldt, streamDepth*nr/4)
	p.lenAcc = kernel.tall * nr
	if p.blocked {
		p.lenAcc = roundUp(p.mt, mr) * roundUp(p.nt, nr)
	}
	return p
}

// taskCut is a choice of tasks: slabs × panels tiles are to be cut into tasks of
// at most mostSlabs × mostPanels, but of fewest tiles at least, if the product
// has as many.
type taskCut struct {
	slabs, panels         int
	mostSlabs, mostPanels int
	fewest, workers       int
	keepsB                bool // a worker packs a block of B once, not for each task
}

// best returns the slabs and panels of a task such that workers who share the
// tasks, neighbours along the rows, equally end soonest. Decoding a panel takes
// about four fifths of the time of a tile, decoding a slab a quarter.
func (c *taskCut) best() (slabs, panels int) {
	best := 0
	for across := parts(c.panels, c.mostPanels); across <= c.panels; across = finer(c.panels, across) {
		q := parts(c.panels, across)
		least := min(c.slabs, parts(c.fewest, q))
		if best > 0 && least*q < c.fewest {
			break
		}
		blocks := parts(c.panels, q)
		for down := parts(c.slabs, max(least, c.mostSlabs)); down <= c.slabs; down = finer(c.slabs, down) {
			s := parts(c.slabs, down)
			if best > 0 && (s < least || parts(c.slabs, s)*blocks > 8*c.workers && s < c.mostSlabs) {
				break
			}
			tasks := parts(parts(c.slabs, s)*blocks, c.workers)
			packs := tasks
			if c.keepsB {
				packs = parts(blocks, c.workers)
			}
			cost := tasks*s*(20*q+5) + packs*16*q
			if best == 0 || cost < best {
				best, slabs, panels = cost, s, q
			}
		}
	}
	return slabs, panels
}

// finer is the next number of parts above count that makes them smaller, so that a
// plan of a product of any width looks at some 2·√n of them; above n if there is none.
func finer(n, count int) int {
	size := parts(n, count)
	if size <= 1 {
		return n + 1
	}
	return parts(n, size-1)
}

func (p *gemmPlan) tasks(m, n int) int { return parts(m, p.mt) * parts(n, p.nt) }

func (p *gemmPlan) scratch() int { return p.lenA + p.lenB + p.lenT + p.lenAcc }

// carve cuts a worker's scratch.
func (p *gemmPlan) carve(s []float32) (a, b, tmp, acc []float32) {
	a, s = s[:p.lenA], s[p.lenA:]
	b, s = s[:p.lenB], s[p.lenB:]
	tmp, s = s[:p.lenT], s[p.lenT:]
	return a, b, tmp, s[:p.lenAcc]
}

// balanced says whether tasks of equal size keep the workers busy for seven
// eighths of the time.
func balanced(tasks, workers int) bool {
	return tasks*8 >= parts(tasks, workers)*workers*7
}

// even is the size of the parts when n is cut into as few as limit allows, all
// but the last of one size, which is a multiple of unit.
func even(n, limit, unit int) int {
	count := max(1, parts(n, limit))
	return roundUp(max(1, parts(n, count)), unit)
}

// parts is n/size rounded up.
func parts(n, size int) int { return (n + size - 1) / size }

func roundUp(n, unit int) int { return parts(n, unit) * unit }
