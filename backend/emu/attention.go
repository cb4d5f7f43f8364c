package emu

import (
	"math"

	"octet/backend"
)

// Attention goes through the keys in blocks with the online softmax of Milakov
// and Gimelshein (2018), as FlashAttention does: a query keeps the maximum of
// its scores so far, the sum of their exponentials relative to it, and the sum
// of values weighted by these; a new maximum rescales the sums. A row of the
// result depends on the blocks of keys alone, not on which queries are worked
// on together.
//
// The query heads that share a key head are worked on together: row r of a
// block is query r / group of head r mod group. So a decoding step, with one
// query per head, still decodes its keys once.
//
// The products are of FP32 operands, with the kernels of the matrix product:
// as with its F32 products, the last bits depend on the instruction set.

// keyBlock is how many keys are held at a time; a multiple of every kernel's nr.
const keyBlock = 64

// heads is the geometry of an attention op.
type heads struct {
	batch, queries, keys int // sequences, and rows of each
	kv, group, dim       int // key heads, query heads to each, width of a head

	block int     // queries of a block
	rows  int     // rows of a block, rounded up to the kernel's mr
	ld    int     // from one row of a block to the next
	scale float32 // 1/√dim
}

// scoreLD is the step between rows of scores. The odd cache line keeps a power
// of two from mapping all rows to the same lines of a cache.
const scoreLD = keyBlock + arenaAlign/4

func newHeads(kernel *gemmKernel, q, k *backend.Tensor, batch, dim int) heads {
	h := heads{
		batch: batch, queries: q.Rows() / batch, keys: k.Rows() / batch,
		kv: k.Cols() / dim, group: q.Cols() / k.Cols(), dim: dim,
		ld:    roundUp(dim, kernel.nr) + arenaAlign/4,
		scale: float32(1 / math.Sqrt(float64(dim))),
	}
	h.block = max(1, roundUp(keyBlock, kernel.mr)/h.group)
	h.rows = roundUp(h.block*h.group, kernel.mr)
	return h
}

// pairs is the number of sequences times key heads: what shares no data.
func (h *heads) pairs() int { return h.batch * h.kv }

// queryBlocks is the number of blocks of queries in a sequence.
func (h *heads) queryBlocks() int { return parts(h.queries, h.block) }

// lseIndex is where row r of a block from query i on has its place in
// LSE, [batch·heads, queries].
func (h *heads) lseIndex(pair, i, r int) int {
	return (pair*h.group+r%h.group)*h.queries + i + r/h.group
}

// row is the tensor row of query i of a pair, or of key i in a tensor with n
// rows for each sequence.
func (h *heads) row(pair, n, i int) int { return pair/h.kv*n + i }

// column is where the query head of row r begins.
func (h *heads) column(pair, r int) int { return (pair%h.kv*h.group + r%h.group) * h.dim }

// decodeQueries decodes n queries from i on. Row r starts at r·step, each run
// of nr columns at chunk after the run before it.
func (h *heads) decodeQueries(t *tiles, dst []float32, step, chunk int, q *operand, pair, i, n int) {
	for g := range h.group {
		t.decode(dst[g*step:], h.group*step, chunk, q, h.row(pair, h.queries, i), h.column(pair, g), n, h.dim)
	}
}

// decodeKeys decodes n keys from j on.
func (h *heads) decodeKeys(t *tiles, dst []float32, step, chunk int, k *operand, pair, j, n int) {
	t.decode(dst, step, chunk, k, h.row(pair, h.keys, j), pair%h.kv*h.dim, n, h.dim)
}

// panelLen is the room for panels that hold all of a head's columns, of n rows.
func (h *heads) panelLen(t *tiles, n int) int { return roundUp(h.dim, t.nr) * n }

// attentionSpace is a worker's scratch for one block of queries and one of keys.
type attentionSpace struct {
	tiles
	q          []float32 // [rows, ld]
	keyRows    []float32 // [keyBlock, ld], to be transposed
	k          []float32 // Kᵀ in panels [ld, nr]
	v          []float32 // V in panels [keyBlock, nr]
	s          []float32 // [rows, scoreLD]: scores, then their exponentials
	o          []float32 // [rows, ld]: the weighted sum of values so far
	top, total []float32 // [rows]: maximum of the scores, sum of the exponentials
}

func (h *heads) attentionSpace(kernel *gemmKernel, scratch []float32) (s attentionSpace, used int) {
	c := carver{scratch: scratch}
	s.tiles = tiles{kernel, c.take(kernel.mr * kernel.nr)}
	s.q = c.take(h.rows * h.ld)
	s.keyRows = c.take(keyBlock * h.ld)
	s.k = c.take(keyBlock * h.ld)
	s.v = c.take(h.panelLen(&s.tiles, keyBlock))
	s.s = c.take(h.rows * scoreLD)
	s.o = c.take(h.rows * h.ld)
	s.top, s.total = c.take(h.rows), c.take(h.rows)
	return s, c.used
}

func (b *binder) attention(o *backend.Attention) func() {
	return b.attentionWith(gemmKernels()[0], o)
}

func (b *binder) attentionWith(kernel *gemmKernel, o *backend.Attention) func() {
	h := newHeads(kernel, o.Q, o.K, o.Batch, o.HeadDim)
	q, k, v := b.operand(o.Q), b.operand(o.K), b.operand(o.V)
	lse, words := b.f32(o.LSE), b.i32(o.Control)
	e := b.emitter(o.Out, o.Q.Cols())
	_, used := h.attentionSpace(kernel, nil)
	b.pool.reserve(used)
	var position int
	tasks := h.pairs() * h.queryBlocks()
	task := func(worker, task int) {
		// The last queries see the most keys: they go first, so that no worker
		// is left with a long task at the end.
		task = tasks - 1 - task
		pair, i0 := task%h.pairs(), task/h.pairs()*h.block
		n := min(h.block, h.queries-i0)
		rows := n * h.group
		s, _ := h.attentionSpace(kernel, b.pool.scratch[worker])

		h.decodeQueries(&s.tiles, s.q, h.ld, s.nr, &q, pair, i0, n)
		clear(s.q[rows*h.ld:])
		clear(s.o)
		clear(s.total)
		fillWith(s.top, float32(math.Inf(-1)))

		// Of a cache that is longer, nothing beyond the last query is read.
		seen := min(position+i0+n, h.keys)
		for j0 := 0; j0 < seen; j0 += keyBlock {
			keys := min(keyBlock, seen-j0)
			h.decodeKeys(&s.tiles, s.keyRows, h.ld, s.nr, &k, pair, j0, keys)
			s.transposed(s.k, h.ld*s.nr, s.keyRows, h.ld, keys, h.dim)
			h.decodeKeys(&s.tiles, s.v, s.nr, keyBlock*s.nr, &v, pair, j0, keys)

			s.product(s.s, scoreLD, rows, keys, h.dim, s.q, h.ld, 1, s.k, h.ld*s.nr, false)
			for r := range rows {
				visible := min(position+i0+r/h.group+1-j0, keys)
				h.weigh(&s, r, visible, keys)
			}
			s.product(s.o, h.ld, rows, h.dim, keys, s.s, scoreLD, 1, s.v, keyBlock*s.nr, true)
		}
		for r := range rows {
			out := s.o[r*h.ld:][:h.dim]
			multiplyBy(out, 1/s.total[r])
			e.store(worker, h.row(pair, h.queries, i0+r/h.group), h.column(pair, r), out)
			if lse != nil {
				lse[h.lseIndex(pair, i0, r)] = float32(float64(s.top[r]) + math.Log(float64(s.total[r])))
			}
		}
	}
	return storing(func() {
		position = int(readControl(words).Position)
		b.pool.run(tasks, task)
	}, e)
}

// weigh turns row r of the scores into weights relative to the largest score
// so far, and the row's sums with them. Keys that are not visible weigh 0.
func (h *heads) weigh(s *attentionSpace, r, visible, keys int) {
	row := s.s[r*scoreLD:][:keys]
	visible = max(0, visible)
	clear(row[visible:])
	if row = row[:visible]; len(row) == 0 {
		return
	}
	if top := maximum(row) * h.scale; top > s.top[r] {
		factor := expf(s.top[r] - top)
		s.top[r] = top
		s.total[r] *= factor
		multiplyBy(s.o[r*h.ld:][:h.dim], factor)
	}
	s.total[r] += expSum(row, row, h.scale, s.top[r])
}

// multiplyBy is x *= factor.
func multiplyBy(x []float32, factor float32) {
	for i := range x {
		x[i] *= factor
	}
}
