package emu

// The largest blocks. In FP32 a block of A is 336 KB and a block of B 768 KB,
// which leaves room in a second-level cache of 1 MB or more; a panel of B and
// a slab of A pass through the first-level cache. The accumulators of a task
// that waits between two blocks of k are 1.5 MB, touched once per block.
const (
	maxBlockK = 512  // columns of op(A)
	maxBlockM = 168  // rows of op(A): a multiple of every kernel's mr
	maxTaskM  = 1024 // rows and columns of one task
	maxTaskN  = 384
)

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

func planGemm(kernel *gemmKernel, m, n, k int, transA bool, workers int) gemmPlan {
	mr, nr := kernel.mr, kernel.nr
	p := gemmPlan{
		mt:      even(m, maxTaskM, mr),
		nt:      even(n, maxTaskN, nr),
		kc:      even(k, maxBlockK, depthUnit),
		blocked: k > maxBlockK,
	}
	for !balanced(parts(m, p.mt)*parts(n, p.nt), workers) && p.mt*p.nt*max(k, 1) >= 2*minTaskWork {
		switch {
		case p.mt > mr && (p.mt >= p.nt || p.nt <= nr):
			p.mt = roundUp((p.mt+1)/2, mr)
		case p.nt > nr:
			p.nt = roundUp((p.nt+1)/2, nr)
		default:
			workers = 1 // one tile: nothing to split
		}
	}
	p.mc = even(p.mt, maxBlockM, mr)

	// Rows are decoded nr floats at a time. The odd cache line keeps a power
	// of two from mapping all rows to the same lines of a cache.
	const line = 16
	depth := roundUp(p.kc, nr)
	p.ldt = depth + line
	if transA {
		p.lda = roundUp(p.mc, nr) + line
		p.lenA = p.kc * p.lda
	} else {
		p.lda = p.ldt
		p.lenA = p.mc * p.lda
	}
	p.lenB = p.nt * p.kc
	p.lenT = kernel.group * p.ldt
	p.lenAcc = mr * nr
	if p.blocked {
		p.lenAcc = roundUp(p.mt, mr) * roundUp(p.nt, nr)
	}
	return p
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
