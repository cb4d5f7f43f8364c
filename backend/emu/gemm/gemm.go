package gemm

import (
	"errors"
	"fmt"
	"math"
	"unsafe"

	"octet/backend"
	"octet/backend/emu/memory"
	"octet/backend/emu/pool"
	"octet/fp8"
)

// check returns an error if m does not fit its memory, or kernels do not take its format.
func check(m memory.Matrix, name string) error {
	var have int
	switch {
	case m.DType == fp8.F32:
		have = len(m.F32)
	case m.DType.IsWide():
		have = len(m.U16)
	case m.DType.IsQuantized():
		have = len(m.U8) * 8 / m.DType.Format().Store
	default:
		return fmt.Errorf("gemm: %s is %s; kernels multiply fp32, bf16, fp16 and formats of up to eight bits", name, m.DType)
	}
	if m.Rows < 0 || m.Cols < 0 || m.LD < m.Cols {
		return fmt.Errorf("gemm: %s is %d×%d with a leading dimension of %d", name, m.Rows, m.Cols, m.LD)
	}
	if m.Rows > 0 && m.Cols > 0 && have < (m.Rows-1)*m.LD+m.Cols {
		return fmt.Errorf("gemm: %s is %d×%d with a leading dimension of %d but has %d elements of %s",
			name, m.Rows, m.Cols, m.LD, have, m.DType)
	}
	return nil
}

// Epilogue computes the stored value v from an accumulator, in FP32, in this order. The
// zero value of a field omits its line.
type Epilogue struct {
	// v = acc·alpha, the product of the operands' Scale
	RowScale   []float32     // v = v·RowScale[i]
	ColScale   []float32     // v = v·ColScale[j]
	Residual   memory.Matrix // v = v + Residual[i,j], wide; it may be out itself
	Accumulate bool          // v = v + the old out[i,j], wide
	Amax       *float32      // amax = max(amax, |v|); NaN counts as larger than infinity
	OutScale   []float32     // v = v·OutScale[0], only if out is FP8
	Used       []int32       // the rows of a, as stored, from Used[0] on are 0; nil: all may have values
	// out is v, rounded to nearest even: FP8 saturates, BF16 and F16 overflow to infinity.
}

// GEMM is a GEMM of fixed operands, made once and run many times.
type GEMM struct {
	M, N, K        int
	a, b, out      memory.Matrix
	transA, transB bool

	pool     *pool.Pool
	kernel   *Kernel
	pairs    *PairKernel    // not nil if words of blocks are pairs of BF16, see pairs.go
	choice   *pairChoice    // not nil if each run chooses between pairs and FP32: BF16, block scales
	plan     blocking       // its k counts words
	integers *IntegerKernel // not nil if words of blocks are integers, see integers.go
	scales   *runScales     // nil without runs of k: see scale.go
	scaled   *elementScales // nil without scales that multiply elements: see scaled.go
	fused    *fused         // not nil in the arithmetic of a device model
	amx      bool           // the arithmetic is that of amx.go
	task     func(worker, task int)
	used     int // rows of a, as stored, that may have values in this run

	accumulated *accumulated // not nil with an accumulator of few bits: see accumulate.go

	workers []workerState
}

// workerState is the state that a worker keeps between the tasks of one run, padded to
// cache lines of its own.
type workerState struct {
	out         tileOut
	packed      int            // 1 + the first column of the block of B in its scratch; 0: none
	smallest    [2]uint16      // of A and of B, see PairKernel.Smallest
	scaleLimits [2]scaleLimits // of A and of B, see scaledChoice
	codes       []uint8        // for two rows of an operand of four bits
	scales      []float32      // of a row of decoded elements, see scaleDown
	a, b        magnitudes     // of the decoded blocks, if the kernel has multiplyFMA
	_           [128]byte
}

// New returns out = op(a)·op(b), where op(x) is x or its transpose. It takes any
// pair of F32, BF16, F16 and floating-point formats of up to eight bits, and any two integer
// formats. out must not overlap a or b. New grows the pool's scratch, so
// that Run allocates nothing.
func New(p *pool.Pool, a memory.Matrix, transA bool, b memory.Matrix, transB bool, out memory.Matrix) (*GEMM, error) {
	return NewWith(Kernels()[0], p, a, transA, b, transB, out)
}

// NewWith is New with one of Kernels.
func NewWith(kernel *Kernel, p *pool.Pool, a memory.Matrix, transA bool, b memory.Matrix, transB bool, out memory.Matrix) (*GEMM, error) {
	for _, x := range []struct {
		name string
		memory.Matrix
	}{{"A", a}, {"B", b}, {"out", out}} {
		if err := check(x.Matrix, x.name); err != nil {
			return nil, err
		}
	}
	g := &GEMM{a: a, b: b, out: out, transA: transA, transB: transB, pool: p, kernel: kernel, workers: make([]workerState, p.Size())}
	g.M, g.K = orient(a, transA)
	k, n := orient(b, transB)
	g.N = n
	if k != g.K || out.Rows != g.M || out.Cols != n {
		return nil, fmt.Errorf("gemm: shapes do not match: %d×%d times %d×%d, output %d×%d",
			g.M, g.K, k, n, out.Rows, out.Cols)
	}
	if a.DType.IsInteger() != b.DType.IsInteger() {
		return nil, fmt.Errorf("gemm: A is %s and B is %s: an integer format multiplies only integer formats", a.DType, b.DType)
	}
	if a.DType.IsInteger() && g.K > backend.MaxIntegerK {
		return nil, fmt.Errorf("gemm: K is %d: sums of products of integers fit 32 bits up to K = %d", g.K, backend.MaxIntegerK)
	}
	g.task = g.runTask
	if a.DType.Size() == 0 || b.DType.Size() == 0 {
		for w := range g.workers {
			g.workers[w].codes = make([]uint8, 2*max(g.M, g.N, g.K))
		}
	}
	codes := a.DType.IsQuantized() && b.DType.IsQuantized()
	switch {
	case a.DType.IsInteger():
		g.useIntegers(kernel.Integers)
	case codes && kernel.streams(g.M, g.K, transA, transB) && classOf(b.DType) != other:
		g.task = g.runStream
	case codes && bf16TableOf(a.DType) != nil && bf16TableOf(b.DType) != nil && unit(a.DType)*unit(b.DType) >= smallestNormal:
		g.pairs = kernel.Pairs
	}
	g.plan = planBlocks(kernel, g.M, g.N, g.words(g.K), DepthUnit, transA, p.Size())
	if kernel.Pairs != nil && !codes && pairable(a.DType) && pairable(b.DType) && g.M*g.N >= kernel.Pairs.reuse*(g.M+g.N) {
		g.choosePairs(g.bf16Choice())
	}
	g.reserve()
	return g, nil
}

// reserve reserves the scratch of g's plan, with room for the sums of one run in a tile.
func (g *GEMM) reserve() {
	if g.scales != nil || g.a.DType.IsInteger() {
		g.plan.lenAcc += g.kernel.tall * g.kernel.NR
	}
	g.pool.Reserve(g.plan.scratch())
}

// streams reports whether a GEMM of FP8 operands uses runStream.
func (k *Kernel) streams(m, depth int, transA, transB bool) bool {
	return k.stream != nil && m <= streamRows && depth > 0 && !transA && transB
}

// perWord returns the number of elements along k that a word of a block holds.
func (g *GEMM) perWord() int {
	switch {
	case g.integers != nil:
		return g.integers.size
	case g.pairs != nil:
		return 2
	}
	return 1
}

// words returns the number of words of a block that hold n elements along k.
func (g *GEMM) words(n int) int { return pool.CeilDiv(n, g.perWord()) }

// elements returns the elements that words [l, l+depth) of op(A)'s rows hold.
func (g *GEMM) elements(l, depth int) (from, count int) {
	n := g.perWord()
	return n * l, min(n*depth, g.K-n*l)
}

// view returns the memory of x as elements of another type.
func view[To, From float32 | int32 | uint16 | uint8](x []From) []To {
	var from From
	var to To
	return unsafe.Slice((*To)(unsafe.Pointer(unsafe.SliceData(x))), len(x)*int(unsafe.Sizeof(from))/int(unsafe.Sizeof(to)))
}

func orient(x memory.Matrix, trans bool) (rows, cols int) {
	if trans {
		return x.Cols, x.Rows
	}
	return x.Rows, x.Cols
}

// Run computes the GEMM with epilogue e. It panics if e does not fit out.
func (g *GEMM) Run(e Epilogue) {
	g.pool.Run(g.begin(e), g.task)
	g.end(e.Amax)
}

// begin prepares a run and returns the number of its tasks.
func (g *GEMM) begin(e Epilogue) int {
	if err := g.check(&e); err != nil {
		panic(err)
	}
	if g.M == 0 || g.N == 0 {
		return 0
	}
	if e.Accumulate {
		e.Residual = g.out
	}
	if g.used = g.a.Rows; e.Used != nil {
		g.used = min(g.used, int(e.Used[0]))
	}
	if g.choice != nil {
		g.choose()
	}
	workers, alpha := g.workers, g.a.ScaleInv()*g.b.ScaleInv()
	for w := range workers {
		workers[w].out.begin(&e, alpha, g.out)
		workers[w].packed = 0
	}
	if s := g.scales; s != nil {
		g.pool.Run(pool.CeilDiv(g.K, s.run), s.expand)
	}
	return g.plan.tasks(g.M, g.N)
}

// end merges the workers' amaxes into amax after a run, unless amax is nil.
func (g *GEMM) end(amax *float32) {
	if amax == nil || g.M == 0 || g.N == 0 {
		return
	}
	for w := range g.workers {
		*amax = fp8.MaxAmax(*amax, math.Float32frombits(g.workers[w].out.amax))
	}
}

func (g *GEMM) check(e *Epilogue) error {
	r := &e.Residual
	switch {
	case e.RowScale != nil && len(e.RowScale) < g.M:
		return fmt.Errorf("gemm: %d row scales for %d rows", len(e.RowScale), g.M)
	case e.ColScale != nil && len(e.ColScale) < g.N:
		return fmt.Errorf("gemm: %d column scales for %d columns", len(e.ColScale), g.N)
	case e.Accumulate && (r.DType != fp8.Invalid || g.out.DType.IsQuantized()):
		return errors.New("gemm: accumulate needs an f32, bf16 or f16 output and no residual")
	case r.DType == fp8.Invalid:
		return nil
	case !r.DType.IsWide(), r.Rows != g.M, r.Cols != g.N:
		return fmt.Errorf("gemm: the residual is %d×%d %s and the output %d×%d: it must have the output's shape, in f32, bf16 or f16",
			r.Rows, r.Cols, r.DType, g.M, g.N)
	}
	return check(*r, "residual")
}

// runTask computes one rectangle of the output.
func (g *GEMM) runTask(worker, task int) {
	p, kern := &g.plan, g.kernel
	nr, tall := kern.NR, kern.tall
	down := pool.CeilDiv(g.M, p.mt)
	i0, j0 := task%down*p.mt, task/down*p.nt
	rows, cols := min(p.mt, g.M-i0), min(p.nt, g.N-j0)
	a, b, tmp, acc := p.carve(g.pool.Scratch[worker])

	state := &g.workers[worker]
	out := &state.out
	if g.fused != nil {
		g.fused.begin(worker)
	}

	end, bottom := g.words(g.K), g.M // rows of op(a) from bottom on are 0
	switch {
	case !g.transA:
		bottom = g.used
	case g.scales == nil && g.fused == nil && !g.a.DType.IsInteger():
		end = g.words(g.used)
	}
	for l0, first := 0, true; first || l0 < end; l0, first = l0+p.kc, false {
		depth := min(p.kc, end-l0)
		last := l0+depth == end
		if p.blocked || state.packed != 1+j0 {
			g.packB(worker, b, tmp, l0, j0, depth, cols)
			if g.scaled != nil {
				g.scalePanels(worker, b, l0, j0, depth, cols)
			}
			state.packed = 1 + j0
			if g.fused != nil {
				g.fused.powersB(worker, b, depth, p.panel, cols)
			}
		}
		tile := acc
		for i := 0; i < rows; i += p.mc {
			block := min(p.mc, rows-i)
			step, stepK, used := 0, 0, bottom-i0-i
			if used > 0 {
				step, stepK = g.decodeA(worker, a, tmp, i0+i, l0, block, depth)
			}
			if q := g.integers; q != nil && q.offset != nil && depth > 0 && used > 0 {
				q.offset(a[:(block-1)*step+(depth-1)*stepK+1])
			}
			if g.fused != nil && used > 0 {
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
					if part := acc[max(0, p.lenAcc-tall*nr):]; r >= used {
						clear(tile[:pool.RoundUp(height, kern.MR)*nr])
					} else if g.scales == nil {
						g.sum(worker, depth, height, a[r*step:], step, stepK, panel, tile, part, l0)
					} else {
						g.multiplyRuns(worker, depth, height, a[r*step:], step, stepK, panel, tile, part, i0+i+r, j0+j, l0)
					}
					if last {
						if g.fused != nil && g.scales != nil {
							canonicalNaNs(tile[:height*nr])
						}
						kern.finish(tile, out)
					}
					if p.blocked {
						tile = tile[pool.RoundUp(height, kern.MR)*nr:]
					}
				}
			}
		}
	}
}

// multiply calls the multiply of g's arithmetic.
func (g *GEMM) multiply(worker, depth, rows int, a []float32, step, stepK int, b, c []float32, load bool) {
	switch {
	case g.integers != nil:
		g.integers.Multiply(depth, rows, a, step, stepK, b, c, load)
	case g.fused != nil:
		g.fused.multiply(worker, depth, rows, a, step, stepK, b, c, load)
	case g.pairs != nil:
		g.pairs.Multiply(depth, rows, a, step, stepK, b, c, load)
	case g.scaled != nil && g.kernel.multiplyFMA != nil && g.workers[worker].a.leaveRange(g.workers[worker].b):
		g.kernel.multiplyFMA(depth, rows, a, step, stepK, b, c, load)
	default:
		g.kernel.Multiply(depth, rows, a, step, stepK, b, c, load)
	}
}

// decode decodes src to the words that g multiplies. along says that k runs along the
// rows of src.
func (g *GEMM) decode(worker int, dst []float32, step, chunk int, src memory.Matrix, rows, cols int, along bool) {
	if g.integers != nil {
		g.decodeIntegers(worker, dst, step, chunk, src, rows, cols, along)
		return
	}
	if src.DType.Size() == 0 {
		g.unpack(worker, dst, step, chunk, src, rows, cols, along)
		return
	}
	if g.pairs != nil {
		g.pairs.Decode(dst, step, chunk, src, rows, cols, along)
	} else {
		g.kernel.Decode(dst, step, chunk, src, rows, cols)
	}
}

// unpack is decode for codes of four bits: two rows at a time, it writes one code to each
// byte of the worker's codes, and decodes these.
func (g *GEMM) unpack(worker int, dst []float32, step, chunk int, src memory.Matrix, rows, cols int, along bool) {
	codes := memory.Matrix{DType: src.DType.InBytes(), U8: g.workers[worker].codes, LD: cols}
	for i := 0; i < rows; i += 2 {
		n := min(2, rows-i)
		for r := range n {
			fp8.Unpack4(codes.U8[r*cols:][:cols], src.U8[(i+r)*src.LD/2:])
		}
		at := i * step
		if g.pairs != nil && !along { // two rows of codes are one of words
			at /= 2
		}
		g.decode(worker, dst[at:], step, chunk, codes, n, cols, along)
	}
}

// runStream is runTask for few rows of A and an FP8 B that is stored transposed, as in
// decoding tokens. It reads B once and never stores it as FP32.
func (g *GEMM) runStream(worker, task int) {
	p, kern, nr := &g.plan, g.kernel, g.kernel.NR
	left := task * p.nt
	right := min(g.N, left+p.nt)
	a, _, tmp, acc := p.carve(g.pool.Scratch[worker])
	codes := view[uint8](tmp)[:streamDepth*nr]
	tile := acc[:streamRows*nr]
	out := &g.workers[worker].out
	lda := pool.RoundUp(g.K, nr) + lineFloats
	g.decode(worker, a, lda, nr, g.a, g.M, g.K, true)
	for j := left; j < right; j += nr {
		clear(tile)
		width, scale := min(nr, right-j), float32(1)
		for l := 0; l < g.K; l += streamDepth {
			depth := min(streamDepth, g.K-l)
			for d := 0; d < depth; d += gatherDepth {
				kern.gather(codes[d*nr:], g.b.U8[j*g.b.LD+l+d:], g.b.LD, width, min(gatherDepth, depth-d))
			}
			scale = kern.stream(depth, g.M, a[l:], lda, codes, g.b.DType, tile)
		}
		for i := range tile {
			tile[i] *= scale
		}
		out.place(0, j, g.M, width)
		kern.finish(tile, out)
	}
}

// decodeA decodes rows [i, i+rows) of op(A), words [l, l+depth), in their stored
// orientation unless the kernel needs another. step is the distance of op(A)'s rows, stepK
// that of its words.
func (g *GEMM) decodeA(worker int, dst, tmp []float32, i, l, rows, depth int) (step, stepK int) {
	if q := g.integers; q != nil && q.contiguous && g.transA {
		return g.transposeA(worker, dst, tmp, i, l, rows, depth)
	}
	ld := g.plan.lda
	l, depth = g.elements(l, depth)
	if g.transA {
		g.decode(worker, dst, ld, g.kernel.NR, g.a.Sub(l, i), depth, rows, false)
		if g.scaled != nil {
			g.workers[worker].a = magnitudes{}
			g.scaleDown(worker, &g.workers[worker].a, dst, ld, &g.scaled.a, true, i, l, rows, depth)
		}
		return 1, ld
	}
	g.decode(worker, dst, ld, g.kernel.NR, g.a.Sub(i, l), rows, depth, true)
	if g.scaled != nil {
		g.scaleAlong(worker, dst, ld, &g.scaled.a, i, l, rows, depth)
	}
	return ld, 1
}

// packB decodes words [l, l+depth) of op(B)'s columns [j, j+cols) to panels of
// nr columns, each [kc, nr], plan.panel apart. The padding of the last panel is not
// written: it affects only accumulators that are not stored.
func (g *GEMM) packB(worker int, dst, tmp []float32, l, j, depth, cols int) {
	nr, panel, height := g.kernel.NR, g.plan.panel, g.kernel.TransposeRows
	from, count := g.elements(l, depth)
	if !g.transB {
		g.decode(worker, dst, nr, panel, g.b.Sub(from, j), count, cols, false)
		return
	}
	src := g.b.Sub(j, from)
	if g.kernel.gather != nil && src.DType.Size() == 1 && g.integers == nil {
		g.gatherB(worker, dst, tmp, src, count, cols)
		return
	}
	ld := g.plan.ldt
	for c := 0; c < cols; c += height {
		g.decode(worker, tmp, ld, nr, src.Sub(c, 0), min(height, cols-c), count, true)
		g.kernel.Transpose(dst[c/nr*panel+c%nr:], nr, tmp, ld, depth)
	}
}

// gatherB is packB for an FP8 B that is stored transposed, with count codes along k. It
// transposes codes, which are fewer bytes than decoded words.
func (g *GEMM) gatherB(worker int, dst, tmp []float32, src memory.Matrix, count, cols int) {
	nr, panel := g.kernel.NR, g.plan.panel
	codes := memory.Matrix{DType: src.DType, LD: nr}
	codes.U8 = view[uint8](tmp)[:gatherDepth*nr]
	for c := 0; c < cols; c += nr {
		for l := 0; l < count; l += gatherDepth {
			n := min(gatherDepth, count-l)
			g.kernel.gather(codes.U8, src.U8[c*src.LD+l:], src.LD, min(nr, cols-c), n)
			g.decode(worker, dst[c/nr*panel+g.words(l)*nr:], nr, panel, codes, n, nr, false)
		}
	}
}
