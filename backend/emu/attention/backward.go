package attention

import (
	"math"
	"sort"

	"octet/backend/emu/cast"
	"octet/backend/emu/memory"
	"octet/backend/emu/pool"
	"octet/backend/emu/simd"
)

// The backward of attention recomputes, block by block, the probabilities P
// from LSE. With S the scores, dP = dO·Vᵀ and δ = rowsum(dO ⊙ O),
//
//	dV = Pᵀ·dO     dS = P ⊙ (dP − δ)/√dim     dK = dSᵀ·Q     dQ = dS·K
//
// Every sum over queries runs over ascending queries, every sum over keys over
// ascending keys. So two ways to split the work give the same bits. By default a task
// owns one sequence and KV head, with all its query heads, and computes P and dS once.
// With too few of these tasks for the workers, tasks that own one block of keys run
// first, then tasks that own some blocks of queries; both kinds compute P and dS.

// GradOperands are those of backend.AttentionGrad, in memory.
type GradOperands struct {
	DOut, Q, K, V, O memory.Matrix
	LSE              []float32 // [batch·heads, queries]
	Delta            []float32 // scratch for δ, as large as LSE
	Start            []int32   // as in Operands
	DQ, DK, DV       *cast.Output
	Batch, HeadDim   int
}

// gradSpace is a worker's scratch.
type gradSpace struct {
	tiles
	q, do   pairOperand // [rows of a block, dim], left operands
	qk, dok operand     // the same as right ones, with the rows along k
	k       operand     // [keyBlock, dim]
	kt, vt  pairOperand // [dim, keyBlock]: Kᵀ, Vᵀ
	p, ds   sheet       // [rows of a block, keyBlock]
	dsLeft  operand     // dS
	pt, dst operand     // Pᵀ, dSᵀ
	dq      sheet       // [rows of a task, dim]
	dk, dv  sheet       // [keyBlock, dim]

	lse2, delta []float32 // [rows of a block]: LSE·log2 e, δ
}

// backward is a bound AttentionGrad.
type backward struct {
	heads
	GradOperands
	pool *pool.Pool
	span int // queries of a task that owns queries
}

func (a *backward) space(scratch []float32) (s gradSpace, used int) {
	c := carver{scratch: scratch}
	rows := a.block * a.perKV
	s.tiles = newTiles(a.unit, a.dim, rows, &c)
	q, qk := s.takeBoth(&c, rows, a.dim)
	do, dok := s.takeBoth(&c, rows, a.dim)
	s.q, s.qk = s.takePairOperand(&c, q, rows, a.dim, false), qk
	s.do, s.dok = s.takePairOperand(&c, do, rows, a.dim, false), dok
	s.k = s.takeRight(&c, a.dim, keyBlock)
	s.kt = s.takePairOperand(&c, s.takeRight(&c, keyBlock, a.dim), keyBlock, a.dim, true)
	s.vt = s.takePairOperand(&c, s.takeRight(&c, keyBlock, a.dim), keyBlock, a.dim, true)
	s.p, _ = s.takeScores(&c, rows, keyBlock)
	s.ds, s.dsLeft = s.takeScores(&c, rows, keyBlock)
	s.pt, s.dst = s.takeTransposed(&c, s.p, rows, keyBlock), s.takeTransposed(&c, s.ds, rows, keyBlock)
	s.dk, s.dv = c.sheet(s.mr, keyBlock, s.ld(a.dim)), c.sheet(s.mr, keyBlock, s.ld(a.dim))
	s.lse2, s.delta = c.take(rows), c.take(rows)
	s.dq = c.sheet(s.mr, a.span*a.perKV, s.ld(a.dim))
	return s, c.used
}

// Split reports whether NewGrad should split the pairs of a sequence and a KV head into
// several tasks: whether there are too few of them for the workers.
func (o *GradOperands) Split(p *pool.Pool) bool {
	return !pool.Balanced(o.Batch*(o.K.Cols/o.HeadDim), p.Size())
}

// NewGrad returns a function that computes the gradients of attention with the workers of
// p and the matrix products of unit. The results do not depend on split.
func NewGrad(p *pool.Pool, unit Unit, o GradOperands, split bool) func() {
	a := &backward{heads: newHeads(unit, &o.Q, &o.K, o.Start, o.Batch, o.HeadDim), GradOperands: o, pool: p}
	a.span = a.queries
	if split {
		a.span = a.heads.span(p.Size())
	}
	_, used := a.space(nil)
	p.Reserve(used)

	delta := a.delta()
	whole, keys, queries := a.pairTask, a.keysTask, a.queriesTask
	run := func() {
		delta()
		a.pool.Run(a.pairs(), whole)
	}
	if split {
		run = func() {
			delta()
			a.pool.Run(a.pairs()*pool.CeilDiv(a.keys, keyBlock), keys)
			a.pool.Run(a.pairs()*pool.CeilDiv(a.queries, a.span), queries)
		}
	}
	return cast.Storing(run, o.DQ, o.DK, o.DV)
}

// delta returns a function that computes δ in the layout of LSE.
func (a *backward) delta() func() {
	cols := a.DOut.Cols
	if isBF16(&a.DOut) && isBF16(&a.O) {
		return a.pool.Rows(a.DOut.Rows, cols, func(_, r int) {
			x, y, at := a.DOut.U16[r*a.DOut.LD:], a.O.U16[r*a.O.LD:], a.lseIndex(r/a.queries*a.kv, r%a.queries, 0)
			for col := 0; col < cols; col += a.dim {
				a.Delta[at] = simd.DotBF16(x[col:][:a.dim], y[col:][:a.dim])
				at += a.queries
			}
		})
	}
	a.pool.Reserve(2 * cols)
	return a.pool.Rows(a.DOut.Rows, cols, func(worker, r int) {
		scratch, at := a.pool.Scratch[worker], a.lseIndex(r/a.queries*a.kv, r%a.queries, 0)
		x, y := a.DOut.Row(scratch[:cols], r), a.O.Row(scratch[cols:2*cols], r)
		for col := 0; col < cols; col += a.dim {
			a.Delta[at] = simd.Dot(x[col:][:a.dim], y[col:][:a.dim])
			at += a.queries
		}
	})
}

// pairTask computes all gradients of one sequence and KV head.
func (a *backward) pairTask(worker, pair int) {
	s, _ := a.space(a.pool.Scratch[worker])
	for j := 0; j < a.keys; j += keyBlock {
		a.loadKeys(&s, pair, j)
		end := a.lastQuery(pair, j)
		for i := j / a.block * a.block; i < end; i += a.block {
			a.loadQueries(&s, pair, i)
			a.expectAfter(&s, pair, i, j, end)
			a.probabilities(&s, pair, i, j)
			a.addToKeys(&s, i, j)
			a.addToQueries(&s, s.dq.at(i*a.perKV, 0), pair, i, j)
		}
		a.storeKeys(&s, worker, pair, j)
	}
	a.storeQueries(a.DQ, worker, pair, 0, a.queries, s.dq)
}

// expectAfter sets which rows to prefetch: those that pairTask will read and store from
// the end of this block of queries (i) and keys (j) to the end of the next one. end is
// lastQuery(pair, j).
func (a *backward) expectAfter(s *gradSpace, pair, i, j, end int) {
	t := &s.tiles
	t.expectNothing()
	if j+keyBlock >= a.keys {
		t.expectStore(a.DQ, a.row(pair, a.queries, i), a.column(pair, 0), min(a.block, a.queries-i), a.perKV*a.dim)
	}
	if i += a.block; i >= end {
		row, col := a.row(pair, a.keys, j), pair%a.kv*a.dim
		t.expectStore(a.DK, row, col, a.keysAt(j), a.dim)
		t.expectStore(a.DV, row, col, a.keysAt(j), a.dim)
		if j += keyBlock; j >= a.keys {
			pair, j = pair+1, 0
		}
		if pair == a.pairs() {
			return
		}
		a.expectKeys(t, &a.K, pair, j, a.keysAt(j))
		a.expectKeys(t, &a.V, pair, j, a.keysAt(j))
		i = j / a.block * a.block
	}
	n := min(a.block, a.queries-i)
	a.expectQueries(t, &a.Q, pair, i, n)
	a.expectQueries(t, &a.DOut, pair, i, n)
}

// keysTask computes dK and dV of one block of keys.
func (a *backward) keysTask(worker, task int) {
	s, _ := a.space(a.pool.Scratch[worker])
	pair, j := task%a.pairs(), task/a.pairs()*keyBlock
	a.loadKeys(&s, pair, j)
	end := a.lastQuery(pair, j)
	for i := j / a.block * a.block; i < end; i += a.block {
		a.loadQueries(&s, pair, i)
		a.probabilities(&s, pair, i, j)
		a.addToKeys(&s, i, j)
	}
	a.storeKeys(&s, worker, pair, j)
}

// queriesTask computes dQ of some blocks of queries. The last blocks go first because
// they see the most keys.
func (a *backward) queriesTask(worker, task int) {
	s, _ := a.space(a.pool.Scratch[worker])
	pair, i0 := task%a.pairs(), (pool.CeilDiv(a.queries, a.span)-1-task/a.pairs())*a.span
	end := min(i0+a.span, a.queries)
	for j := a.firstBlock(pair, i0); j < end; j += keyBlock {
		a.loadKeys(&s, pair, j)
		last := min(end, a.lastQuery(pair, j))
		for i := max(i0, j/a.block*a.block); i < last; i += a.block {
			a.loadQueries(&s, pair, i)
			a.probabilities(&s, pair, i, j)
			a.addToQueries(&s, s.dq.at((i-i0)*a.perKV, 0), pair, i, j)
		}
	}
	a.storeQueries(a.DQ, worker, pair, i0, end-i0, s.dq)
}

// lastQuery returns the end of the queries that see a key of the block that begins at j: the
// first later query whose start is after the block.
func (a *backward) lastQuery(pair, j int) int {
	if a.starts == nil {
		return a.queries
	}
	i := min(j+keyBlock, a.queries) // earlier queries start before the block's end
	return i + sort.Search(a.queries-i, func(n int) bool { return a.start(pair, i+n) >= j+keyBlock })
}

// rowsAt and keysAt return the length of the block that begins at query i or key j.
func (a *backward) rowsAt(i int) int { return min(a.block, a.queries-i) * a.perKV }
func (a *backward) keysAt(j int) int { return min(keyBlock, a.keys-j) }

func (a *backward) loadQueries(s *gradSpace, pair, i int) {
	n := min(a.block, a.queries-i)
	s.loadBoth(&s.q, s.qk, a.queryRows(&a.Q, pair, i, n), minExponent)
	s.loadBoth(&s.do, s.dok, a.queryRows(&a.DOut, pair, i, n), minOfGradients)
	for g := range a.perKV {
		at := a.lseIndex(pair, i, g)
		for r := range n {
			s.lse2[r*a.perKV+g] = a.LSE[at+r] * math.Log2E
			s.delta[r*a.perKV+g] = a.Delta[at+r]
		}
	}
}

func (a *backward) loadKeys(s *gradSpace, pair, j int) {
	n := a.keysAt(j)
	s.loadBoth(&s.kt, s.k, a.keyRows(&a.K, pair, j, n), minExponent)
	s.loadPairs(&s.vt, a.keyRows(&a.V, pair, j, n), minOfValues)
}

// probabilities computes P and dS of the block of queries at i and of keys at j; both
// are 0 where the key is not visible.
func (a *backward) probabilities(s *gradSpace, pair, i, j int) {
	rows, keys := a.rowsAt(i), a.keysAt(j)
	for r := 0; r < rows; r += s.mr {
		height := min(s.mr, rows-r)
		visible := s.visible[:height]
		width := a.visible(visible, i-j, r, keys)
		p, ds := s.p.at(r, 0), s.ds.at(r, 0)
		if j < a.firstBlock(pair, i+r/a.perKV) {
			width = 0
			clear(visible)
		}
		if width > 0 {
			s.multiplyPairs(p, height, width, a.dim, &s.q, r, &s.kt)
			s.multiplyPairs(ds, height, width, a.dim, &s.do, r, &s.vt)
		}
		s.gradients(p, ds, keys, visible, a.scale2, a.scale, s.lse2[r:], s.delta[r:])
		if a.starts == nil {
			continue
		}
		for n := range height {
			hidden := min(visible[n], max(0, a.start(pair, i+(r+n)/a.perKV)-j))
			s.clearFirst(p, n, hidden)
			s.clearFirst(ds, n, hidden)
		}
	}
}

// addToKeys computes dV += Pᵀ·dO and dK += dSᵀ·Q, from the first row that sees a key.
// The block of queries with this row comes first and assigns instead of adding. With AMX this
// row is a multiple of 32.
func (a *backward) addToKeys(s *gradSpace, i, j int) {
	rows, keys := a.rowsAt(i), a.keysAt(j)
	if s.amx != nil {
		s.packTransposed(s.pt, s.p, rows, keys)
		s.packTransposed(s.dst, s.ds, rows, keys)
	}
	for c := 0; c < keys; c += s.mr {
		height := min(s.mr, keys-c)
		from, add := max(0, j+c-i)*a.perKV, i > j+c
		if from < rows {
			s.matMul(s.dv.at(c, 0), height, a.dim, rows-from, &s.pt, c, &s.dok, from, add)
			s.matMul(s.dk.at(c, 0), height, a.dim, rows-from, &s.dst, c, &s.qk, from, add)
		}
	}
}

// addToQueries computes dQ += dS·K, up to the last key that a row sees. The first block
// of keys that one of the rows of a matMul sees assigns instead of adding.
func (a *backward) addToQueries(s *gradSpace, dq sheet, pair, i, j int) {
	rows := a.rowsAt(i)
	for r := 0; r < rows; r += s.mr {
		height := min(s.mr, rows-r)
		width := a.visible(s.visible[:height], i-j, r, a.keysAt(j))
		if first := a.firstBlock(pair, i+r/a.perKV); width > 0 && j >= first {
			s.matMul(dq.at(r, 0), height, a.dim, width, &s.dsLeft, r, &s.k, 0, j > first)
		}
	}
}

func (a *backward) storeKeys(s *gradSpace, worker, pair, j int) {
	row, col, n := a.row(pair, a.keys, j), pair%a.kv*a.dim, a.keysAt(j)
	a.DK.StoreRows(worker, row, col, s.dk.x, s.dk.ld, n, a.dim)
	a.DV.StoreRows(worker, row, col, s.dv.x, s.dv.ld, n, a.dim)
}
