package emu

import (
	"errors"
	"fmt"
	"math"
	"unsafe"

	"octet/fp8"
)

// This file computes GEMMs of matrices in memory, out = epilogue(A·B).
//
// # Arithmetic
//
// Each element of A·B is the chain (with block scales, see gemm_scale.go)
//
//	acc = +0;  acc = fma(a[i,l], b[l,j], acc)  for l = 0, 1, … k-1
//
// in FP32, independent of shape, blocking, number of threads and kernel. A product of
// two FP8 values, or of two BF16 values, is exact in FP32, so multiply-then-add gives
// the same bits as fma, and all kernels agree bit for bit on every machine. There are
// two exceptions. BF16 products outside FP32's range: fma rounds once, after the
// addition; separate instructions also round the product. F32 operands: the plain Go
// kernel multiplies, rounds and adds. Sign and payload of a NaN are specified only for
// device models (see canonicalNaNs).
//
// # Method
//
// The output is cut into rectangles, one task each, that share nothing. A worker decodes
// the operands of its rectangle, block by block, to FP32, or to pairs of BF16 where
// those are faster (gemm_pairs.go). Neighbouring tasks decode the same blocks again, but
// need no synchronization. Inside a task the blocking is nearly that of GotoBLAS (Goto
// and van de Geijn, 2008):
//
//   - a block of B that fits the second-level cache, in panels of nr columns
//   - a slab of mr rows of A, decoded just before it is multiplied by all panels
//   - a kernel with mr×nr accumulators in registers
//
// A kernel with narrow registers keeps a block of A in the second-level cache instead,
// and multiplies it by panel after panel, each in the first-level cache. Kernels
// broadcast A from any layout, so A is decoded without rearrangement. B is transposed
// only if it is stored transposed; FP8 B is transposed as codes. Between two blocks of k
// the accumulators are stored in FP32 and loaded again, which preserves the chain. Where
// k is one block, tasks are small, one slab if A can be decoded that way, and a worker
// keeps its block of B from task to task. A GEMM of few rows streams through B instead
// (runStream).

// matrix is a matrix in memory: the one slice that fits dtype is set, row-major, with
// ld elements from one row to the next.
type matrix struct {
	dtype          fp8.DType
	f32            []float32 // F32
	u16            []uint16  // BF16
	u8             []uint8   // E4M3, E4M3IEEE, E5M2
	rows, cols, ld int
}

// at returns m from row i and column j on.
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

// address returns the address of element (row, col).
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
		return fmt.Errorf("gemm: %s is %s; kernels multiply f32, bf16, e4m3, e4m3ieee, e5m2", name, m.dtype)
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

// epilogue computes the stored value v from an accumulator, in FP32, in this order. The
// zero value of a field other than alpha omits its line.
type epilogue struct {
	alpha      float32   // v = acc·alpha: the product of both scale_inv, else 1
	rowScale   []float32 // v = v·rowScale[i]
	colScale   []float32 // v = v·colScale[j]
	residual   matrix    // v = v + residual[i,j], BF16 or F32; it may be out itself
	accumulate bool      // v = v + the old out[i,j], BF16 or F32
	amax       *float32  // amax = max(amax, |v|); NaN counts as larger than infinity
	outScale   []float32 // v = v·outScale[0], only if out is FP8
	// out is v, rounded to nearest even: FP8 saturates, BF16 overflows to infinity.
}

// gemm is a GEMM of fixed operands, made once and run many times.
type gemm struct {
	m, n, k        int
	a, b, out      matrix
	transA, transB bool

	pool   *pool
	kernel *gemmKernel
	pairs  *pairKernel // not nil if words of blocks are pairs of BF16, see gemm_pairs.go
	choice *pairChoice // not nil if each run chooses between pairs and FP32
	plan   gemmPlan    // its k counts words
	scales *runScales  // nil without block scales and promotion
	fused  *fused      // not nil in the arithmetic of a device model
	task   func(worker, task int)

	workers []gemmWorker
}

// gemmWorker is the state that a worker keeps between the tasks of one run, padded to
// cache lines of its own.
type gemmWorker struct {
	out      tileOut
	packed   int       // 1 + the first column of the block of B in its scratch; 0: none
	smallest [2]uint16 // of A and of B, see pairKernel.smallest
	_        [128]byte
}

// newGemm returns out = op(a)·op(b), where op(x) is x or its transpose. It takes any
// pair of formats. out must not overlap a or b. newGemm grows the pool's scratch, so
// that run allocates nothing.
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
	g := &gemm{a: a, b: b, out: out, transA: transA, transB: transB, pool: p, kernel: kernel, workers: make([]gemmWorker, p.size())}
	g.m, g.k = orient(a, transA)
	k, n := orient(b, transB)
	g.n = n
	if k != g.k || out.rows != g.m || out.cols != n {
		return nil, fmt.Errorf("gemm: shapes do not match: %d×%d times %d×%d, output %d×%d",
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

// streams reports whether a GEMM of FP8 operands uses runStream.
func (k *gemmKernel) streams(m, depth int, transA, transB bool) bool {
	return k.stream != nil && m <= streamRows && depth > 0 && !transA && transB
}

// words returns the number of words of a block that hold n elements along k.
func (g *gemm) words(n int) int {
	if g.pairs != nil {
		return ceilDiv(n, 2)
	}
	return n
}

// elements returns the elements that words [l, l+depth) of op(A)'s rows hold.
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

// run computes the GEMM with epilogue e. It panics if e does not fit out.
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
	workers := g.workers
	for w := range workers {
		workers[w].out.begin(&e, g.out)
		workers[w].packed = 0
	}
	if s := g.scales; s != nil {
		g.pool.run(ceilDiv(g.k, s.run), s.expand)
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
		return errors.New("gemm: accumulate needs an f32 or bf16 output and no residual")
	case r.dtype == fp8.Invalid:
		return nil
	case r.dtype != fp8.F32 && r.dtype != fp8.BF16, r.rows != g.m, r.cols != g.n:
		return fmt.Errorf("gemm: the residual is %d×%d %s and the output %d×%d: it must have the output's shape, in f32 or bf16",
			r.rows, r.cols, r.dtype, g.m, g.n)
	}
	return r.check("residual")
}

// runTask computes one rectangle of the output.
func (g *gemm) runTask(worker, task int) {
	p, kern := &g.plan, g.kernel
	nr, tall := kern.nr, kern.tall
	down := ceilDiv(g.m, p.mt)
	i0, j0 := task%down*p.mt, task/down*p.nt
	rows, cols := min(p.mt, g.m-i0), min(p.nt, g.n-j0)
	a, b, tmp, acc := p.carve(g.pool.scratch[worker])

	state := &g.workers[worker]
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

// multiply calls the multiply of g's arithmetic.
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

// decode decodes src to the words that g multiplies. along says that k runs along the
// rows of src.
func (g *gemm) decode(dst []float32, step, chunk int, src matrix, rows, cols int, along bool) {
	if g.pairs != nil {
		g.pairs.decode(dst, step, chunk, src, rows, cols, along)
	} else {
		g.kernel.decode(dst, step, chunk, src, rows, cols)
	}
}

// runStream is runTask for few rows of A and an FP8 B that is stored transposed, as in
// decoding tokens. It reads B once and never stores it as FP32.
func (g *gemm) runStream(worker, task int) {
	p, kern, nr := &g.plan, g.kernel, g.kernel.nr
	left := task * p.nt
	right := min(g.n, left+p.nt)
	a, _, tmp, acc := p.carve(g.pool.scratch[worker])
	codes := unsafe.Slice((*uint8)(unsafe.Pointer(unsafe.SliceData(tmp))), streamDepth*nr)
	tile := acc[:streamRows*nr]
	out := &g.workers[worker].out
	lda := roundUp(g.k, nr) + cacheLine
	kern.decode(a, lda, nr, g.a, g.m, g.k)
	for j := left; j < right; j += nr {
		clear(tile)
		width, scale := min(nr, right-j), float32(1)
		for l := 0; l < g.k; l += streamDepth {
			depth := min(streamDepth, g.k-l)
			for d := 0; d < depth; d += gatherDepth {
				kern.gather(codes[d*nr:], g.b.u8[j*g.b.ld+l+d:], g.b.ld, width, min(gatherDepth, depth-d))
			}
			scale = kern.stream(depth, g.m, a[l:], lda, codes, g.b.dtype, tile)
		}
		for i := range tile {
			tile[i] *= scale
		}
		out.place(0, j, g.m, width)
		kern.finish(tile, out)
	}
}

// decodeA decodes rows [i, i+rows) of op(A), words [l, l+depth), in their stored
// orientation. step is the distance of op(A)'s rows, stepK that of its words.
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
// nr columns, each [kc, nr], plan.panel apart. The padding of the last panel is not
// written: it affects only accumulators that are not stored.
func (g *gemm) packB(dst, tmp []float32, l, j, depth, cols int) {
	nr, panel, height := g.kernel.nr, g.plan.panel, g.kernel.transposeRows
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
	for c := 0; c < cols; c += height {
		g.decode(tmp, ld, nr, src.at(c, 0), min(height, cols-c), count, true)
		g.kernel.transpose(dst[c/nr*panel+c%nr:], nr, tmp, ld, depth)
	}
}

// gatherB is packB for an FP8 B that is stored transposed, with count codes along k. It
// transposes codes, which are fewer bytes than decoded words.
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
