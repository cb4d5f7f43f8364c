package emu

import (
	"errors"
	"fmt"
	"math"
	"unsafe"

	"octet/fp8"
)

// This file is the matrix product of stored matrices, out = epilogue(A·B).
//
// What it computes. Each element of A·B is (but for scales by blocks, see
// gemm_scale.go) the chain
//
//	acc = +0;  acc = fma(a[i,l], b[l,j], acc)  for l = 0, 1, … k-1
//
// in FP32, whatever the shape, the blocking, the number of threads and the
// kernel. A product of two FP8 values, or of two BF16 values, is exact in
// FP32, so multiply-then-add gives the same bits as fma and all kernels agree
// bit for bit on every machine. The exceptions: BF16 products that leave the
// range of FP32 (fma rounds them once, after the addition, a multiplication
// before it), and F32 operands, where the plain Go kernel multiplies, rounds
// and adds. Which NaN a NaN is (sign and payload) is specified for device models
// alone (see canonicalNaNs).
//
// How. The output is cut into rectangles, one task each, that share nothing: a worker
// decodes the operands of its own rectangle, block by block, to FP32, or to pairs of
// BF16 where those are faster (gemm_pairs.go), and pays for the blocks that its
// neighbours decode too with having nobody to wait for. Inside, nearly as in the
// GotoBLAS scheme (Goto and van de Geijn, 2008): a block of B in panels of nr columns
// that fits the second-level cache, a slab of mr rows of A that is decoded just before
// it meets all of them, and a kernel that holds mr×nr accumulators in registers. A
// kernel with narrow registers has a block of A instead, in the second-level cache,
// that meets panel after panel, each of them in the first-level cache. The kernel
// broadcasts A from any layout, so A is decoded without being rearranged, and B is
// transposed if and only if it is stored transposed, FP8 while it still is codes.
// Between two blocks of k an accumulator tile waits in FP32 and is loaded again, which
// is what keeps the chain. Where k is one block, tasks are small, a slab if A can be
// decoded so, and a worker keeps its block of B from task to task. A product of a few
// rows streams through B instead (runStream).

// matrix is one stored operand: the one slice that fits dtype is set,
// row-major, with ld elements from one row to the next.
type matrix struct {
	dtype          fp8.DType
	f32            []float32 // F32
	u16            []uint16  // BF16
	u8             []uint8   // E4M3, E4M3IEEE, E5M2
	rows, cols, ld int
}

// at is m without the rows above i and the columns left of j.
func (m matrix) at(i, j int) matrix {
	at := i*m.ld + j
	switch {
	case m.f32 != nil:
		m.f32 = m.f32[at:]
	case m.u16 != nil:
		m.u16 = m.u16[at:]
	default:
		m.u8 = m.u8[at:]
	}
	m.rows -= i
	m.cols -= j
	return m
}

// address is where element (row, col) lies.
func (m *matrix) address(row, col int) unsafe.Pointer {
	at := row*m.ld + col
	switch {
	case m.f32 != nil:
		return unsafe.Pointer(&m.f32[at])
	case m.u16 != nil:
		return unsafe.Pointer(&m.u16[at])
	}
	return unsafe.Pointer(&m.u8[at])
}

func (m matrix) check(name string) error {
	var have int
	switch {
	case m.dtype == fp8.F32:
		have = len(m.f32)
	case m.dtype == fp8.BF16:
		have = len(m.u16)
	case m.dtype.IsFP8():
		have = len(m.u8)
	default:
		return fmt.Errorf("gemm: %s is %s, which no kernel multiplies (f32, bf16, e4m3, e4m3ieee, e5m2)", name, m.dtype)
	}
	if m.rows < 0 || m.cols < 0 || m.ld < m.cols {
		return fmt.Errorf("gemm: %s is %d×%d with a leading dimension of %d", name, m.rows, m.cols, m.ld)
	}
	if m.rows > 0 && m.cols > 0 && have < (m.rows-1)*m.ld+m.cols {
		return fmt.Errorf("gemm: %s is %d×%d with a leading dimension of %d but has %d elements of %s",
			name, m.rows, m.cols, m.ld, have, m.dtype)
	}
	return nil
}

// epilogue is what becomes of an accumulator, all in FP32, in this order; the
// zero value of a field but alpha leaves its line out.
type epilogue struct {
	alpha      float32   // v = acc·alpha: the product of the dequantising factors, else 1
	rowScale   []float32 // v = v·rowScale[i]
	colScale   []float32 // v = v·colScale[j]
	residual   matrix    // v = v + residual[i,j], BF16 or F32; it may be out itself
	accumulate bool      // v = v + the old out[i,j], BF16 or F32
	amax       *float32  // the larger of itself and |v|; NaN over infinity over numbers
	outScale   []float32 // v = v·outScale[0], only if out is FP8
	// out is v, nearest even: FP8 saturates, BF16 overflows to infinity.
}

// gemm is a product of fixed operands, made once and run many times.
type gemm struct {
	m, n, k        int
	a, b, out      matrix
	transA, transB bool

	pool   *pool
	kernel *gemmKernel
	pairs  *pairKernel // nil unless words of blocks are pairs, see gemm_pairs.go
	choice *pairChoice // nil unless that changes from run to run
	plan   gemmPlan    // its k counts words
	scales *runScales  // nil without scales by blocks and promotion
	fused  *fused      // nil unless the arithmetic is a device model's
	task   func(worker, task int)
}

// gemmWorker is what a worker of the pool keeps from one task of a product's run to
// the next, on cache lines of its own.
type gemmWorker struct {
	out    tileOut
	packed int       // 1 + the first column of the block of B in its scratch, 0 for none
	least  [2]uint16 // of A and of B, see pairKernel.least
	_      [128]byte
}

// newGemm returns out = op(a)·op(b), where op(x) is x or its transpose. Any
// two of the formats may meet. Out must not overlap an operand. Scratch is the
// pool's and grows here, so that run allocates nothing.
func newGemm(p *pool, a matrix, transA bool, b matrix, transB bool, out matrix) (*gemm, error) {
	return newGemmWith(gemmKernels()[0], p, a, transA, b, transB, out)
}

func newGemmWith(kernel *gemmKernel, p *pool, a matrix, transA bool, b matrix, transB bool, out matrix) (*gemm, error) {
	for _, x := range []struct {
		name string
		matrix
	}{{"A", a}, {"B", b}, {"out", out}} {
		if err := x.check(x.name); err != nil {
			return nil, err
		}
	}
	g := &gemm{a: a, b: b, out: out, transA: transA, transB: transB, pool: p, kernel: kernel}
	g.m, g.k = orient(a, transA)
	k, n := orient(b, transB)
	g.n = n
	if k != g.k || out.rows != g.m || out.cols != n {
		return nil, fmt.Errorf("gemm: a product of %d×%d and %d×%d does not fit an output of %d×%d",
			g.m, g.k, k, n, out.rows, out.cols)
	}
	g.task = g.runTask
	bothFP8 := a.dtype.IsFP8() && b.dtype.IsFP8()
	switch {
	case bothFP8 && kernel.streams(g.m, g.k, transA, transB):
		g.task = g.runStream
	case bothFP8:
		g.pairs = kernel.pairs
	}
	g.plan = planGemm(kernel, g.m, g.n, g.words(g.k), depthUnit, transA, p.size())
	if kernel.pairs != nil && !bothFP8 && a.dtype != fp8.F32 && b.dtype != fp8.F32 && g.m*g.n >= kernel.pairs.reuse*(g.m+g.n) {
		g.choosePairs(kernel.pairs)
	}
	p.reserve(g.plan.scratch())
	return g, nil
}

// streams says whether runStream is for a product of FP8 operands.
func (k *gemmKernel) streams(m, depth int, transA, transB bool) bool {
	return k.stream != nil && m <= streamRows && depth > 0 && !transA && transB
}

// words is how many words of a block n elements along k are.
func (g *gemm) words(n int) int {
	if g.pairs != nil {
		return parts(n, 2)
	}
	return n
}

// elements is what words [l, l+depth) of op(A)'s rows hold.
func (g *gemm) elements(l, depth int) (from, count int) {
	if g.pairs != nil {
		return 2 * l, min(2*depth, g.k-2*l)
	}
	return l, depth
}

func orient(x matrix, trans bool) (rows, cols int) {
	if trans {
		return x.cols, x.rows
	}
	return x.rows, x.cols
}

// run computes the product. It panics if e does not fit out, which is a bug of
// the caller's.
func (g *gemm) run(e epilogue) {
	if err := g.check(&e); err != nil {
		panic(err)
	}
	if g.m == 0 || g.n == 0 {
		return
	}
	if e.accumulate {
		e.residual = g.out
	}
	if g.choice != nil {
		g.choose()
	}
	workers := g.pool.products
	for w := range workers {
		workers[w].out.begin(&e, g.out)
		workers[w].packed = 0
	}
	if s := g.scales; s != nil {
		g.pool.run(parts(g.k, s.run), s.expand)
	}
	g.pool.run(g.plan.tasks(g.m, g.n), g.task)
	for w := range workers {
		if e.amax != nil {
			*e.amax = fp8.MaxAmax(*e.amax, math.Float32frombits(workers[w].out.amax))
		}
	}
}

func (g *gemm) check(e *epilogue) error {
	r := &e.residual
	switch {
	case e.rowScale != nil && len(e.rowScale) < g.m:
		return fmt.Errorf("gemm: %d row scales for %d rows", len(e.rowScale), g.m)
	case e.colScale != nil && len(e.colScale) < g.n:
		return fmt.Errorf("gemm: %d column scales for %d columns", len(e.colScale), g.n)
	case e.accumulate && (r.dtype != fp8.Invalid || g.out.dtype.IsFP8()):
		return errors.New("gemm: accumulate needs an output of f32 or bf16 and no residual")
	case r.dtype == fp8.Invalid:
		return nil
	case r.dtype != fp8.F32 && r.dtype != fp8.BF16, r.rows != g.m, r.cols != g.n:
		return fmt.Errorf("gemm: a residual of %d×%d %s for an output of %d×%d: want the same shape, f32 or bf16",
			r.rows, r.cols, r.dtype, g.m, g.n)
	}
	return r.check("residual")
}

// runTask computes one rectangle of the output.
func (g *gemm) runTask(worker, task int) {
	p, kern := &g.plan, g.kernel
	nr, tall := kern.nr, kern.tall
	down := parts(g.m, p.mt)
	i0, j0 := task%down*p.mt, task/down*p.nt
	rows, cols := min(p.mt, g.m-i0), min(p.nt, g.n-j0)
	a, b, tmp, acc := p.carve(g.pool.scratch[worker])

	state := &g.pool.products[worker]
	out := &state.out
	if g.fused != nil {
		g.fused.begin(worker)
	}

	end := g.words(g.k)
	for l0, first := 0, true; first || l0 < end; l0, first = l0+p.kc, false {
		depth := min(p.kc, end-l0)
		last := l0+depth == end
		if p.blocked || state.packed != 1+j0 {
			g.packB(b, tmp, l0, j0, depth, cols)
			state.packed = 1 + j0
			if g.fused != nil {
				g.fused.powersB(worker, b, depth, p.panel, cols)
			}
		}
		tile := acc
		for i := 0; i < rows; i += p.mc {
			block := min(p.mc, rows-i)
			step, stepK := g.decodeA(a, i0+i, l0, block, depth)
			if g.fused != nil {
				g.fused.powersA(worker, a, (block-1)*step+(depth-1)*stepK+1)
			}
			for j := 0; j < cols; j += nr {
				panel := b[j/nr*p.panel:]
				for r := 0; r < block; r += tall {
					height := min(tall, block-r)
					if last {
						out.place(i0+i+r, j0+j, height, min(nr, cols-j))
						if kern.prefetch != nil {
							kern.prefetch(out)
						}
					}
					if g.scales == nil {
						g.multiply(worker, depth, height, a[r*step:], step, stepK, panel, tile, !first)
					} else {
						g.multiplyRuns(worker, depth, height, a[r*step:], step, stepK, panel, tile, acc[p.lenAcc-tall*nr:], i0+i+r, j0+j, l0)
					}
					if last {
						if g.fused != nil && g.scales != nil {
							canonicalNaNs(tile[:height*nr])
						}
						kern.finish(tile, out)
					}
					if p.blocked {
						tile = tile[roundUp(height, kern.mr)*nr:]
					}
				}
			}
		}
	}
}

// multiply is gemmKernel.multiply in the arithmetic of g.
func (g *gemm) multiply(worker, depth, rows int, a []float32, step, stepK int, b, c []float32, load bool) {
	switch {
	case g.fused != nil:
		g.fused.multiply(worker, depth, rows, a, step, stepK, b, c, load)
	case g.pairs != nil:
		g.pairs.multiply(depth, rows, a, step, stepK, b, c, load)
	default:
		g.kernel.multiply(depth, rows, a, step, stepK, b, c, load)
	}
}

// decode is gemmKernel.decode to what g multiplies. along says that k runs along
// the rows of src.
func (g *gemm) decode(dst []float32, step, chunk int, src matrix, rows, cols int, along bool) {
	if g.pairs != nil {
		g.pairs.decode(dst, step, chunk, src, rows, cols, along)
	} else {
		g.kernel.decode(dst, step, chunk, src, rows, cols)
	}
}

// runStream is runTask for few rows and an FP8 B that is stored transposed, as
// when a model generates: B is read once and never stored as FP32.
func (g *gemm) runStream(worker, task int) {
	p, kern, nr := &g.plan, g.kernel, g.kernel.nr
	left := task * p.nt
	right := min(g.n, left+p.nt)
	a, _, tmp, acc := p.carve(g.pool.scratch[worker])
	codes := unsafe.Slice((*uint8)(unsafe.Pointer(unsafe.SliceData(tmp))), streamDepth*nr)
	tile := acc[:streamRows*nr]
	out := &g.pool.products[worker].out
	lda := roundUp(g.k, nr) + cacheLine
	kern.decode(a, lda, nr, g.a, g.m, g.k)
	for j := left; j < right; j += nr {
		clear(tile)
		width, factor := min(nr, right-j), float32(1)
		for l := 0; l < g.k; l += streamDepth {
			depth := min(streamDepth, g.k-l)
			for d := 0; d < depth; d += gatherDepth {
				kern.gather(codes[d*nr:], g.b.u8[j*g.b.ld+l+d:], g.b.ld, width, min(gatherDepth, depth-d))
			}
			factor = kern.stream(depth, g.m, a[l:], lda, codes, g.b.dtype, tile)
		}
		for i := range tile {
			tile[i] *= factor
		}
		out.place(0, j, g.m, width)
		kern.finish(tile, out)
	}
}

// decodeA decodes rows [i, i+rows) of op(A), words [l, l+depth), in the
// orientation they are stored in. The steps are from one row of op(A) to the
// next, and from one word.
func (g *gemm) decodeA(dst []float32, i, l, rows, depth int) (step, stepK int) {
	ld := g.plan.lda
	l, depth = g.elements(l, depth)
	if g.transA {
		g.decode(dst, ld, g.kernel.nr, g.a.at(l, i), depth, rows, false)
		return 1, ld
	}
	g.decode(dst, ld, g.kernel.nr, g.a.at(i, l), rows, depth, true)
	return ld, 1
}

// packB decodes words [l, l+depth) of op(B)'s columns [j, j+cols) to panels of
// nr columns, each [kc, nr] and plan.panel after the one before. What pads the last
// one is left as it was: it only meets accumulators that are not stored.
func (g *gemm) packB(dst, tmp []float32, l, j, depth, cols int) {
	nr, panel, group := g.kernel.nr, g.plan.panel, g.kernel.group
	from, count := g.elements(l, depth)
	if !g.transB {
		g.decode(dst, nr, panel, g.b.at(from, j), count, cols, false)
		return
	}
	src := g.b.at(j, from)
	if g.kernel.gather != nil && src.dtype.IsFP8() {
		g.gatherB(dst, tmp, src, count, cols)
		return
	}
	ld := g.plan.ldt
	for c := 0; c < cols; c += group {
		g.decode(tmp, ld, nr, src.at(c, 0), min(group, cols-c), count, true)
		g.kernel.transpose(dst[c/nr*panel+c%nr:], nr, tmp, ld, depth)
	}
}

// gatherB is packB of a B that is stored transposed, for codes of eight bits,
// count of them along k: there are fewer bytes to turn around before the decoding.
func (g *gemm) gatherB(dst, tmp []float32, src matrix, count, cols int) {
	nr, panel := g.kernel.nr, g.plan.panel
	codes := matrix{dtype: src.dtype, ld: nr}
	codes.u8 = unsafe.Slice((*uint8)(unsafe.Pointer(unsafe.SliceData(tmp))), gatherDepth*nr)
	for c := 0; c < cols; c += nr {
		for l := 0; l < count; l += gatherDepth {
			n := min(gatherDepth, count-l)
			g.kernel.gather(codes.u8, src.u8[c*src.ld+l:], src.ld, min(nr, cols-c), n)
			g.decode(dst[c/nr*panel+g.words(l)*nr:], nr, panel, codes, n, nr, false)
		}
	}
}
