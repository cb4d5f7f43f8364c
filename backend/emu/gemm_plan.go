package emu

// blockLimits are the largest blocks: columns of op(A), and rows and columns of
// a task.
type blockLimits struct{ k, m, n int }

// In FP32 a block of B is 1 MB, which stays in a second-level cache, and a slab
// of A, decoded just before it is used, passes through the first-level one.
// Accumulators wait only where k is longer: what they take from the caches
// costs more than shorter slabs and panels would gain.
var rowLimits = blockLimits{1024, 1050, 256}

// If A is stored transposed, the slabs of a block of maxBlockM rows are decoded
// together, because they share its cache lines, and a slab is spread over too
// many of them for a longer k.
var columnLimits = blockLimits{512, 1050, 384}

// Registers of half the width ask for B twice as often, so its panels should
// fit the first-level cache.
var narrowLimits = blockLimits{256, 1050, 768}

func (k *gemmKernel) limits(transA bool) blockLimits {
	switch {
	case k.narrow:
		return narrowLimits
	case transA:
		return columnLimits
	}
	return rowLimits
}

const maxBlockM = 168 // a multiple of every kernel's mr

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
	blocked  bool // k has more than one block, so that accumulators wait

	lenA, lenB, lenT, lenAcc int // scratch, in floats
}

// planGemm plans a product whose blocks of k are multiples of unit, itself a
// multiple of depthUnit.
func planGemm(kernel *gemmKernel, m, n, k, unit int, transA bool, workers int) gemmPlan {
	mr, nr := kernel.mr, kernel.nr
	most := kernel.limits(transA)
	p := gemmPlan{kc: even(k, max(1, most.k/unit)*unit, unit), mc: mr}
	p.blocked = p.kc < k
	slabs, panels := cutTasks(max(1, parts(m, mr)), max(1, parts(n, nr)), most.m/mr, most.n/nr,
		parts(minTaskWork, mr*nr*max(k, 1)), workers)
	p.mt, p.nt = slabs*mr, panels*nr
	if transA {
		p.mc = even(p.mt, maxBlockM, mr)
	}

	// Rows are decoded nr floats at a time. The odd cache line keeps a power
	// of two from mapping all rows to the same lines of a cache.
	depth := roundUp(p.kc, nr)
	p.ldt = depth + cacheLine
	if transA {
		p.lda = roundUp(p.mc, nr) + cacheLine
		p.lenA = p.kc * p.lda
	} else {
		p.lda = p.ldt
		p.lenA = p.mc * p.lda
	}
	p.lenB = p.nt * p.kc
	if m <= streamRows { // runStream decodes all of A
		p.lenA = max(p.lenA, streamRows*(roundUp(k, nr)+cacheLine))
	}
	p.lenT = max(kernel.group*p.ldt, streamDepth*nr/4)
	p.lenAcc = mr * nr
	if p.blocked {
		p.lenAcc = roundUp(p.mt, mr) * roundUp(p.nt, nr)
	}
	return p
}

// cutTasks returns the slabs and panels of a task such that workers who take
// tasks in turn end soonest. Decoding a panel takes a task about four fifths of
// the time of a tile, decoding a slab a quarter. A task has fewest tiles unless
// the product has not.
func cutTasks(slabs, panels, mostSlabs, mostPanels, fewest, workers int) (s, q int) {
	best := 0
	for down := parts(slabs, mostSlabs); down <= slabs; down++ {
		for across := parts(panels, mostPanels); across <= panels; across++ {
			ds, dq := parts(slabs, down), parts(panels, across)
			tasks := parts(slabs, ds) * parts(panels, dq)
			if best > 0 && (ds*dq < fewest || tasks > 8*workers && down > parts(slabs, mostSlabs)) {
				break
			}
			cost := parts(tasks, workers) * (20*ds*dq + 16*dq + 5*ds)
			if best == 0 || cost < best {
				best, s, q = cost, ds, dq
			}
		}
	}
	return s, q
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
