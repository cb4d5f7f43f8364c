package emu

import "octet/backend"

// The backward of attention recomputes, block by block, the probabilities P
// from LSE. With S the scores, dP = dO·Vᵀ and δ = rowsum(dO ⊙ O),
//
//	dV = Pᵀ·dO     dS = P ⊙ (dP − δ)/√dim     dK = dSᵀ·Q     dQ = dS·K
//
// Every sum over queries runs over ascending blocks of queries, every sum over
// keys over ascending blocks of keys. That leaves two ways to go through the
// pairs of blocks, with the same bits: a task that owns a sequence and a key
// head, with all its query heads, computes P and dS once; where there are too
// few of these for the workers, tasks that own one block of keys, and after
// them tasks that own one block of queries, compute them twice.

// gradSpace is a worker's scratch.
type gradSpace struct {
	tiles
	q, do        []float32 // [rows, ld]
	qPanels, dos []float32 // the same in panels [rows, nr]
	keyRows      []float32 // [keyBlock, ld], to be transposed
	k, v         []float32 // Kᵀ, Vᵀ in panels [ld, nr]
	keyPanels    []float32 // K in panels [keyBlock, nr]
	p, ds        []float32 // [rows, scoreLD]
	dq           []float32 // [of a block or a sequence, ld]
	dk, dv       []float32 // [keyBlock, ld]
}

func (h *heads) gradSpace(kernel *gemmKernel, queries int, scratch []float32) (s gradSpace, used int) {
	c := carver{scratch: scratch}
	s.tiles = tiles{kernel, c.take(kernel.mr * kernel.nr)}
	s.q, s.do = c.take(h.rows*h.ld), c.take(h.rows*h.ld)
	s.qPanels, s.dos = c.take(h.panelLen(&s.tiles, h.rows)), c.take(h.panelLen(&s.tiles, h.rows))
	s.keyRows = c.take(keyBlock * h.ld)
	s.k, s.v = c.take(keyBlock*h.ld), c.take(keyBlock*h.ld)
	s.keyPanels = c.take(h.panelLen(&s.tiles, keyBlock))
	s.p, s.ds = c.take(h.rows*scoreLD), c.take(h.rows*scoreLD)
	s.dq = c.take(queries * h.group * h.ld)
	s.dk, s.dv = c.take(keyBlock*h.ld), c.take(keyBlock*h.ld)
	return s, c.used
}

// attentionBackward is a bound AttentionGrad.
type attentionBackward struct {
	heads
	kernel     *gemmKernel
	pool       *pool
	q, k, v    operand
	do         operand
	lse, delta []float32 // [batch·heads, queries]
	grad       struct{ q, k, v *emitter }
	inDQ       int // queries that dq of a worker's scratch has room for
}

func (b *binder) attentionGrad(o *backend.AttentionGrad) func() {
	pairs := o.Batch * (o.K.Cols() / o.HeadDim)
	return b.attentionGradWith(gemmKernels()[0], o, !balanced(pairs, b.pool.size()))
}

// attentionGradWith takes the decision whether to split the pairs.
func (b *binder) attentionGradWith(kernel *gemmKernel, o *backend.AttentionGrad, split bool) func() {
	a := &attentionBackward{
		heads: newHeads(kernel, o.Q, o.K, o.Batch, o.HeadDim), kernel: kernel, pool: b.pool,
		q: b.operand(o.Q), k: b.operand(o.K), v: b.operand(o.V), do: b.operand(o.DOut),
		lse: b.f32(o.LSE), delta: make([]float32, o.LSE.Elems()),
	}
	a.grad.q = b.emitter(o.DQ, o.Q.Cols())
	a.grad.k, a.grad.v = b.emitter(o.DK, o.K.Cols()), b.emitter(o.DV, o.K.Cols())
	a.inDQ = a.queries
	if split {
		a.inDQ = a.block
	}
	_, used := a.gradSpace(kernel, a.inDQ, nil)
	b.pool.reserve(used)

	delta := b.attentionDelta(&a.heads, o, a.delta)
	whole, keys, queries := a.pairTask, a.keysTask, a.queriesTask
	run := func() {
		delta()
		a.pool.run(a.pairs(), whole)
	}
	if split {
		run = func() {
			delta()
			a.pool.run(a.pairs()*parts(a.keys, keyBlock), keys)
			a.pool.run(a.pairs()*a.queryBlocks(), queries)
		}
	}
	return storing(run, a.grad.q, a.grad.k, a.grad.v)
}

// attentionDelta computes δ, in the order of LSE.
func (b *binder) attentionDelta(h *heads, o *backend.AttentionGrad, delta []float32) func() {
	do, out := b.rows(o.DOut), b.rows(o.O)
	cols, total := do.cols, o.Q.Rows()
	b.pool.reserve(2 * cols)
	tasks, height := rowTasks(total, cols)
	task := func(worker, task int) {
		scratch := b.pool.scratch[worker]
		for r := task * height; r < min(total, (task+1)*height); r++ {
			x, y := do.row(scratch[:cols], r), out.row(scratch[cols:2*cols], r)
			for head := range cols / h.dim {
				at := (r/h.queries*(h.kv*h.group)+head)*h.queries + r%h.queries
				delta[at] = dot(x[head*h.dim:][:h.dim], y[head*h.dim:][:h.dim])
			}
		}
	}
	return func() { b.pool.run(tasks, task) }
}

// pairTask computes all gradients of one sequence and key head.
func (a *attentionBackward) pairTask(worker, pair int) {
	s, _ := a.gradSpace(a.kernel, a.inDQ, a.pool.scratch[worker])
	clear(s.dq)
	for j := 0; j < a.keys; j += keyBlock {
		a.loadKeys(&s, pair, j)
		clear(s.dk)
		clear(s.dv)
		for i := j / a.block * a.block; i < a.queries; i += a.block {
			a.loadQueries(&s, pair, i)
			a.probabilities(&s, pair, i, j)
			a.addToKeys(&s, i, j)
			a.addToQueries(&s, s.dq[i*a.group*a.ld:], i, j)
		}
		a.storeKeys(&s, worker, pair, j)
	}
	a.storeQueries(&s, worker, pair, 0, a.queries)
}

// keysTask computes dK and dV of one block of keys.
func (a *attentionBackward) keysTask(worker, task int) {
	s, _ := a.gradSpace(a.kernel, a.inDQ, a.pool.scratch[worker])
	pair, j := task%a.pairs(), task/a.pairs()*keyBlock
	a.loadKeys(&s, pair, j)
	clear(s.dk)
	clear(s.dv)
	for i := j / a.block * a.block; i < a.queries; i += a.block {
		a.loadQueries(&s, pair, i)
		a.probabilities(&s, pair, i, j)
		a.addToKeys(&s, i, j)
	}
	a.storeKeys(&s, worker, pair, j)
}

// queriesTask computes dQ of one block of queries, the last ones first because
// they see the most keys.
func (a *attentionBackward) queriesTask(worker, task int) {
	s, _ := a.gradSpace(a.kernel, a.inDQ, a.pool.scratch[worker])
	pair, i := task%a.pairs(), (a.queryBlocks()-1-task/a.pairs())*a.block
	a.loadQueries(&s, pair, i)
	clear(s.dq)
	for j := 0; j < i+a.queriesAt(i); j += keyBlock {
		a.loadKeys(&s, pair, j)
		a.probabilities(&s, pair, i, j)
		a.addToQueries(&s, s.dq, i, j)
	}
	a.storeQueries(&s, worker, pair, i, a.queriesAt(i))
}

// queriesAt and keysAt are the lengths of the blocks that begin there.
func (a *attentionBackward) queriesAt(i int) int { return min(a.block, a.queries-i) }
func (a *attentionBackward) keysAt(j int) int    { return min(keyBlock, a.keys-j) }

func (a *attentionBackward) loadQueries(s *gradSpace, pair, i int) {
	n := a.queriesAt(i)
	a.decodeQueries(&s.tiles, s.q, a.ld, s.nr, &a.q, pair, i, n)
	a.decodeQueries(&s.tiles, s.do, a.ld, s.nr, &a.do, pair, i, n)
	clear(s.q[n*a.group*a.ld:])
	clear(s.do[n*a.group*a.ld:])
	a.decodeQueries(&s.tiles, s.qPanels, s.nr, a.rows*s.nr, &a.q, pair, i, n)
	a.decodeQueries(&s.tiles, s.dos, s.nr, a.rows*s.nr, &a.do, pair, i, n)
}

func (a *attentionBackward) loadKeys(s *gradSpace, pair, j int) {
	n := a.keysAt(j)
	a.decodeKeys(&s.tiles, s.keyRows, a.ld, s.nr, &a.v, pair, j, n)
	s.transposed(s.v, a.ld*s.nr, s.keyRows, a.ld, n, a.dim)
	a.decodeKeys(&s.tiles, s.keyRows, a.ld, s.nr, &a.k, pair, j, n)
	s.transposed(s.k, a.ld*s.nr, s.keyRows, a.ld, n, a.dim)
	a.decodeKeys(&s.tiles, s.keyPanels, s.nr, keyBlock*s.nr, &a.k, pair, j, n)
}

// probabilities computes P and dS of the queries from i on and the keys from
// j on; both are 0 where the key is not visible.
func (a *attentionBackward) probabilities(s *gradSpace, pair, i, j int) {
	rows, keys := a.queriesAt(i)*a.group, a.keysAt(j)
	s.product(s.p, scoreLD, rows, keys, a.dim, s.q, a.ld, 1, s.k, a.ld*s.nr, false)
	s.product(s.ds, scoreLD, rows, keys, a.dim, s.do, a.ld, 1, s.v, a.ld*s.nr, false)
	for r := range rows {
		p, ds := s.p[r*scoreLD:][:keys], s.ds[r*scoreLD:][:keys]
		visible := max(0, min(i+r/a.group+1-j, keys))
		clear(p[visible:])
		clear(ds[visible:])
		at := a.lseIndex(pair, i, r)
		expSum(p[:visible], p[:visible], a.scale, a.lse[at])
		scoreGradient(ds[:visible], p[:visible], a.delta[at], a.scale)
	}
}

// scoreGradient turns dP into dS.
func scoreGradient(ds, p []float32, delta, scale float32) {
	p = p[:len(ds)]
	for i, d := range ds {
		ds[i] = p[i] * (d - delta) * scale
	}
}

// addToKeys is dV += Pᵀ·dO, dK += dSᵀ·Q.
func (a *attentionBackward) addToKeys(s *gradSpace, i, j int) {
	rows, keys := a.queriesAt(i)*a.group, a.keysAt(j)
	s.product(s.dv, a.ld, keys, a.dim, rows, s.p, 1, scoreLD, s.dos, a.rows*s.nr, true)
	s.product(s.dk, a.ld, keys, a.dim, rows, s.ds, 1, scoreLD, s.qPanels, a.rows*s.nr, true)
}

// addToQueries is dQ += dS·K.
func (a *attentionBackward) addToQueries(s *gradSpace, dq []float32, i, j int) {
	rows, keys := a.queriesAt(i)*a.group, a.keysAt(j)
	s.product(dq, a.ld, rows, a.dim, keys, s.ds, scoreLD, 1, s.keyPanels, keyBlock*s.nr, true)
}

func (a *attentionBackward) storeKeys(s *gradSpace, worker, pair, j int) {
	for r := range a.keysAt(j) {
		row, col := a.row(pair, a.keys, j+r), pair%a.kv*a.dim
		a.grad.k.store(worker, row, col, s.dk[r*a.ld:][:a.dim])
		a.grad.v.store(worker, row, col, s.dv[r*a.ld:][:a.dim])
	}
}

func (a *attentionBackward) storeQueries(s *gradSpace, worker, pair, i, n int) {
	for r := range n * a.group {
		a.grad.q.store(worker, a.row(pair, a.queries, i+r/a.group), a.column(pair, r), s.dq[r*a.ld:][:a.dim])
	}
}
