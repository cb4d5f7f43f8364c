package emu

import (
	"math"

	"octet/backend"
	"octet/backend/emu/simd"
)

// Attention goes through the keys in blocks with the online softmax of Milakov
// and Gimelshein (2018), as FlashAttention does: a query keeps the maximum of
// its scores so far, the sum of their exponentials relative to it, and the sum
// of values weighted by these; a new maximum rescales the sums. A row of the
// result depends on the blocks of keys alone, not on which queries are worked
// on together.
//
// The query heads that share a key head are worked on together: row r of a
// task is query r / group of head r mod group. So a decoding step, with one
// query per head, still decodes its keys once.
//
// A block of keys is decoded and transposed once for all rows of a task. Then
// mr rows at a time, which fit the first-level cache with all that belongs to
// them, get their scores, their weights and their sums. What no row of the mr
// sees is left out.
//
// The products are of FP32 operands, with the kernels of the matrix product:
// as with its F32 products, the last bits depend on the instruction set.

// keyBlock is how many keys are held at a time; a multiple of every kernel's
// nr. Kᵀ and V of a block are 32 KB each where heads are 64 wide.
const keyBlock = 128

// fewKeys is how many keys are decoded at a time to be transposed, so that they
// are still in the first-level cache then.
const fewKeys = 32

// heads is the geometry of an attention op.
type heads struct {
	batch, queries, keys int // sequences, and rows of each
	kv, group, dim       int // key heads, query heads to each, width of a head

	block  int     // queries of a block
	ld     int     // from one row of a sheet of heads to the next
	scale  float32 // 1/√dim
	scale2 float32 // log2 e/√dim
}

// blockRows is about how many rows a block of queries has, and taskBlocks how
// many blocks a task at most: all of a task's rows share the work of loading a
// block of keys, which is about that of multiplying it with sixteen rows.
const (
	blockRows  = 64
	taskBlocks = 8
)

// scoreLD is the step between rows of scores. The odd cache line keeps a power
// of two from mapping all rows to the same lines of a cache.
const scoreLD = keyBlock + arenaAlign/4

func newHeads(kernel *gemmKernel, q, k *backend.Tensor, batch, dim int) heads {
	h := heads{
		batch: batch, queries: q.Rows() / batch, keys: k.Rows() / batch,
		kv: k.Cols() / dim, group: q.Cols() / k.Cols(), dim: dim,
		ld:     roundUp(dim, kernel.nr) + arenaAlign/4,
		scale:  float32(1 / math.Sqrt(float64(dim))),
		scale2: float32(math.Log2E / math.Sqrt(float64(dim))),
	}
	h.block = max(1, blockRows/h.group)
	return h
}

// pairs is the number of sequences times key heads: what shares no data.
func (h *heads) pairs() int { return h.batch * h.kv }

// span is the number of queries of a task, whole blocks. Tasks of one pair
// differ in work, so it takes several to a worker to keep all of them busy.
func (h *heads) span(workers int) int {
	blocks := min(taskBlocks, parts(h.queries, h.block))
	for blocks > 1 && !balanced(h.pairs(), workers) && h.pairs()*parts(h.queries, blocks*h.block) < 4*workers {
		blocks--
	}
	return blocks * h.block
}

// lseIndex is where row r of a task from query i on has its place in
// LSE, [batch·heads, queries].
func (h *heads) lseIndex(pair, i, r int) int {
	return (pair*h.group+r%h.group)*h.queries + i + r/h.group
}

// row is the tensor row of query i of a pair, or of key i in a tensor with n
// rows for each sequence.
func (h *heads) row(pair, n, i int) int { return pair/h.kv*n + i }

// column is where the query head of row r begins.
func (h *heads) column(pair, r int) int { return (pair%h.kv*h.group + r%h.group) * h.dim }

// decodeQueries decodes n queries from i on.
func (h *heads) decodeQueries(t *tiles, dst sheet, q *operand, pair, i, n int) {
	for g := range h.group {
		t.decode(dst.x[g*dst.ld:], h.group*dst.ld, q, h.row(pair, h.queries, i), h.column(pair, g), n, h.dim)
	}
}

// decodeKeys decodes n keys from j on.
func (h *heads) decodeKeys(t *tiles, dst sheet, k *operand, pair, j, n int) {
	t.decode(dst.x, dst.ld, k, h.row(pair, h.keys, j), pair%h.kv*h.dim, n, h.dim)
}

// transposeKeys decodes the transpose of n keys from j on, by way of few.
func (h *heads) transposeKeys(t *tiles, dst, few sheet, k *operand, pair, j, n int) {
	for i := 0; i < n; i += fewKeys {
		count := min(fewKeys, n-i)
		h.decodeKeys(t, few, k, pair, j+i, count)
		t.transposed(dst.at(0, i), few, count, h.dim)
	}
}

// expectQueries and expectKeys are expect for n queries and keys from i and j on.
func (h *heads) expectQueries(t *tiles, q *operand, pair, i, n int) {
	t.expect(&q.matrix, h.row(pair, h.queries, i), h.column(pair, 0), n, h.group*h.dim)
}

func (h *heads) expectKeys(t *tiles, k *operand, pair, j, n int) {
	t.expect(&k.matrix, h.row(pair, h.keys, j), pair%h.kv*h.dim, n, h.dim)
}

// attentionSpace is a worker's scratch for the queries of a task and a block
// of keys.
type attentionSpace struct {
	tiles
	q, o       sheet     // [rows, dim]: the queries, the weighted sums of values so far
	top, total []float32 // [rows]: maximum of the scores times log2 e, sum of the weights
	few        sheet     // [fewKeys, dim]
	kt         sheet     // [dim, keyBlock]: Kᵀ
	v          sheet     // [keyBlock, dim]
	s          sheet     // [mr, keyBlock]: scores, then weights
}

func (h *heads) attentionSpace(kernel *gemmKernel, rows int, scratch []float32) (s attentionSpace, used int) {
	c := carver{scratch: scratch}
	s.tiles = newTiles(kernel, max(h.dim, keyBlock), &c)
	s.q, s.o = c.sheet(kernel, rows, h.ld), c.sheet(kernel, rows, h.ld)
	s.top, s.total = c.take(rows), c.take(rows)
	s.few, s.v = c.sheet(kernel, fewKeys, h.ld), c.sheet(kernel, keyBlock, h.ld)
	s.kt = c.sheet(kernel, roundUp(h.dim, depthUnit), scoreLD)
	s.s = c.sheet(kernel, kernel.mr, scoreLD)
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
	span := h.span(b.pool.size())
	taskRows := span * h.group
	_, used := h.attentionSpace(kernel, taskRows, nil)
	b.pool.reserve(used)
	var position int
	tasks := h.pairs() * parts(h.queries, span)
	// The last queries see the most keys: they go first, so that no worker is left
	// with a long task at the end.
	place := func(task int) (pair, i0, n int) {
		task = tasks - 1 - task
		i0 = task / h.pairs() * span
		return task % h.pairs(), i0, min(span, h.queries-i0)
	}
	task := func(worker, task int) {
		pair, i0, n := place(task)
		rows := n * h.group
		s, _ := h.attentionSpace(kernel, taskRows, b.pool.scratch[worker])
		h.decodeQueries(&s.tiles, s.q, &q, pair, i0, n)

		// Of a cache that is longer, nothing beyond the last query is read.
		seen := min(position+i0+n, h.keys)
		for j0 := 0; j0 < seen; j0 += keyBlock {
			keys := min(keyBlock, seen-j0)
			h.transposeKeys(&s.tiles, s.kt, s.few, &k, pair, j0, keys)
			h.decodeKeys(&s.tiles, s.v, &v, pair, j0, keys)
			s.expectNothing()
			if next := j0 + keyBlock; next < seen {
				h.expectKeys(&s.tiles, &k, pair, next, min(keyBlock, seen-next))
				h.expectKeys(&s.tiles, &v, pair, next, min(keyBlock, seen-next))
			} else if task+1 < tasks {
				pair, i0, n := place(task + 1)
				h.expectQueries(&s.tiles, &q, pair, i0, n)
				h.expectKeys(&s.tiles, &k, pair, 0, min(keyBlock, h.keys))
				h.expectKeys(&s.tiles, &v, pair, 0, min(keyBlock, h.keys))
			}
			if j0 == 0 {
				s.expectStore(e, h.row(pair, h.queries, i0), h.column(pair, 0), n, h.group*h.dim)
			}
			for r := 0; r < rows; r += s.mr {
				height := min(s.mr, rows-r)
				visible, width := h.visible(position+i0-j0, r, height, keys)
				if width == 0 {
					continue
				}
				s.ask()
				var highest [maxTileRows]float32
				top, total := s.top[r:r+height], s.total[r:r+height]
				s.product(s.s, height, width, h.dim, s.q.at(r, 0), false, s.kt, false)
				simd.MaxRows(highest[:], s.s.x, s.s.ld, visible[:height])
				for i := range top {
					high := highest[i] * h.scale2
					switch old := top[i]; {
					case j0 == 0:
						top[i], total[i] = high, 0
					case high > old:
						factor := simd.Exp2(old - high)
						top[i] = high
						total[i] *= factor
						simd.Scale(s.o.row(r+i, h.dim), factor)
					}
				}
				simd.WeighRows(s.s.x, s.s.ld, roundUp(width, 16), visible[:height], h.scale2, top, total)
				s.product(s.o.at(r, 0), height, h.dim, width, s.s, false, s.v, j0 > 0)
			}
		}
		for r := range rows {
			out := s.o.row(r, h.dim)
			simd.Scale(out, 1/s.total[r])
			e.store(worker, h.row(pair, h.queries, i0+r/h.group), h.column(pair, r), out)
		}
		if lse == nil {
			return
		}
		for r := range rows { // by themselves several logarithms are under way at a time
			lse[h.lseIndex(pair, i0, r)] = float32(float64(s.top[r])*math.Ln2 + math.Log(float64(s.total[r])))
		}
	}
	return storing(func() {
		position = int(readControl(words).Position)
		b.pool.run(tasks, task)
	}, e)
}

// visible counts, of a block of keys, those that each of some rows from r on
// sees, where the first query of the rows' block is as far behind the first key
// as ahead says. Later rows see more; width is what the last one sees.
func (h *heads) visible(ahead, r, rows, keys int) (visible [maxTileRows]int, width int) {
	query, head := r/h.group, r%h.group
	for i := range rows {
		width = max(0, min(ahead+query+1, keys))
		visible[i] = width
		if head++; head == h.group {
			query, head = query+1, 0
		}
	}
	return visible, width
}
