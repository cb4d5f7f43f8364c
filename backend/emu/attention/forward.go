package attention

import (
	"math"

	"octet/backend"
	"octet/backend/emu/cast"
	"octet/backend/emu/memory"
	"octet/backend/emu/pool"
	"octet/backend/emu/simd"
)

// Operands are those of backend.Attention, in memory.
type Operands struct {
	Q, K, V        memory.Matrix
	Out            *cast.Output
	LSE            []float32 // [batch·heads, queries]: log-sum-exp of the scores; nil: not stored
	Start          []int32   // [batch·queries]: the first key that each query sees; nil: 0
	Control        []int32   // step.control; nil gives position 0
	Batch, HeadDim int
}

// Attention goes through the keys in blocks with the online softmax of Milakov
// and Gimelshein (2018), as FlashAttention does: a query keeps the maximum of
// its scores so far, the sum of their exponentials relative to it, and the sum
// of values weighted by these; a new maximum rescales the sums. A row of the
// result depends on the blocks of keys alone, not on which queries a task has.
//
// A task has all query heads of one KV head: row r is query r / perKV of head
// r mod perKV. So a decoding step, with one query per head, still decodes its
// keys once.
//
// A task decodes and transposes a block of keys once for all its rows. Then it
// computes scores, weights and sums for mr rows at a time, whose data fits the
// first-level cache. It skips keys that none of the mr rows sees. Keys before a row's start,
// in a block that another of the mr rows sees, get the score -Inf.
//
// The matrix products are those of a Unit. With FP32 operands they run on the GEMM kernels;
// as in FP32 GEMMs, the last bits depend on the instruction set.

// keyBlock is the keys of a block; a multiple of every unit's nr. Kᵀ and V of a
// block are 32 KB each with heads of 64.
const keyBlock = 128

// heads is the geometry of an attention op.
type heads struct {
	batch, queries, keys int // sequences, and rows of each
	kv, perKV, dim       int // KV heads, query heads per KV head, head size
	starts               []int32
	unit                 Unit

	block  int     // queries of a block
	scale  float32 // 1/√dim
	scale2 float32 // log2 e/√dim
}

// A block of queries has about blockRows rows (with AMX up to 32·perKV, because they are a
// multiple of 32), a task at most taskBlocks blocks. All
// rows of a task share the cost of loading a block of keys, which is about that of
// multiplying it with sixteen rows.
const (
	blockRows  = 64
	taskBlocks = 8
)

func newHeads(unit Unit, q, k *memory.Matrix, starts []int32, batch, dim int) heads {
	h := heads{
		batch: batch, queries: q.Rows / batch, keys: k.Rows / batch, starts: starts, unit: unit,
		kv: k.Cols / dim, perKV: q.Cols / k.Cols, dim: dim,
		scale:  float32(1 / math.Sqrt(float64(dim))),
		scale2: float32(math.Log2E / math.Sqrt(float64(dim))),
	}
	h.block = max(1, blockRows/h.perKV)
	for h.block*h.perKV%unit.depthUnit != 0 {
		h.block++ // a block has a multiple of depthUnit rows
	}
	return h
}

// pairs returns the number of pairs of a sequence and a KV head. Pairs share no data.
func (h *heads) pairs() int { return h.batch * h.kv }

// span returns the number of queries of a task, in whole blocks. Tasks of one pair
// differ in work, so keeping all workers busy takes several tasks per worker.
func (h *heads) span(workers int) int {
	blocks := min(taskBlocks, pool.CeilDiv(h.queries, h.block))
	for blocks > 1 && !pool.Balanced(h.pairs(), workers) && h.pairs()*pool.CeilDiv(h.queries, blocks*h.block) < 4*workers {
		blocks--
	}
	return blocks * h.block
}

// lseIndex returns the index in LSE, [batch·heads, queries], of row r of a task that
// begins at query i.
func (h *heads) lseIndex(pair, i, r int) int {
	return (pair*h.perKV+r%h.perKV)*h.queries + i + r/h.perKV
}

// row returns the tensor row of query or key i of a pair; n is the rows of a sequence.
func (h *heads) row(pair, n, i int) int { return pair/h.kv*n + i }

// column returns the first column of the query head of row r.
func (h *heads) column(pair, r int) int { return (pair%h.kv*h.perKV + r%h.perKV) * h.dim }

// queryRows returns n queries of a pair from i on, keyRows n keys from j on.
func (h *heads) queryRows(m *memory.Matrix, pair, i, n int) rows {
	return rows{m, h.row(pair, h.queries, i), h.column(pair, 0), n, h.perKV, h.dim}
}

func (h *heads) keyRows(m *memory.Matrix, pair, j, n int) rows {
	return rows{m, h.row(pair, h.keys, j), pair % h.kv * h.dim, n, 1, h.dim}
}

// expectQueries and expectKeys call expect for n queries from i on and n keys from j on.
func (h *heads) expectQueries(t *tiles, q *memory.Matrix, pair, i, n int) {
	t.expect(q, h.row(pair, h.queries, i), h.column(pair, 0), n, h.perKV*h.dim)
}

func (h *heads) expectKeys(t *tiles, k *memory.Matrix, pair, j, n int) {
	t.expect(k, h.row(pair, h.keys, j), pair%h.kv*h.dim, n, h.dim)
}

// space is a worker's scratch for the queries of a task and a block of keys.
type space struct {
	tiles
	q          pairOperand // [rows, dim]: queries
	o          sheet       // [rows, dim]: running weighted sums of values
	top, total []float32   // [rows]: running maxima of scores times log2 e, sums of weights
	kt         pairOperand // [dim, keyBlock]: Kᵀ
	v          operand     // [keyBlock, dim]
	s          sheet       // [mr, keyBlock]: scores, then weights
	weights    operand     // the weights
	highest    []float32   // [mr]: maxima of scores; at the end, inverse sums of weights
}

func (h *heads) space(rows int, scratch []float32) (s space, used int) {
	c := carver{scratch: scratch}
	s.tiles = newTiles(h.unit, h.dim, h.unit.mr, &c)
	s.q = s.takePairOperand(&c, s.takeLeft(&c, rows, h.dim), rows, h.dim, false)
	s.o = c.sheet(s.mr, rows, s.ld(h.dim))
	s.top, s.total = c.take(rows), c.take(rows)
	s.kt = s.takePairOperand(&c, s.takeRight(&c, keyBlock, h.dim), keyBlock, h.dim, true)
	s.v = s.takeRight(&c, h.dim, keyBlock)
	s.s, s.weights = s.takeScores(&c, s.mr, keyBlock)
	s.highest = c.take(s.mr)
	return s, c.used
}

// New returns a function that computes attention with the workers of p and the matrix
// products of unit.
func New(p *pool.Pool, unit Unit, o Operands) func() {
	h := newHeads(unit, &o.Q, &o.K, o.Start, o.Batch, o.HeadDim)
	span := h.span(p.Size())
	taskRows := span * h.perKV
	_, used := h.space(taskRows, nil)
	p.Reserve(used)
	var position int
	tasks := h.pairs() * pool.CeilDiv(h.queries, span)
	// The last queries see the most keys. They go first, so that no long task is left
	// for the end.
	place := func(task int) (pair, i0, n int) {
		task = tasks - 1 - task
		i0 = task / h.pairs() * span
		return task % h.pairs(), i0, min(span, h.queries-i0)
	}
	task := func(worker, task int) {
		pair, i0, n := place(task)
		rows := n * h.perKV
		s, _ := h.space(taskRows, p.Scratch[worker])
		s.loadPairs(&s.q, h.queryRows(&o.Q, pair, i0, n), minExponent)

		// The cache may be longer; keys after the last query are not read.
		seen := min(position+i0+n, h.keys)
		from := h.firstBlock(pair, i0)
		for j0 := from; j0 < seen; j0 += keyBlock {
			keys := min(keyBlock, seen-j0)
			s.loadPairs(&s.kt, h.keyRows(&o.K, pair, j0, keys), minExponent)
			s.load(h.keyRows(&o.V, pair, j0, keys), operand{}, s.v, operand{})
			s.expectNothing()
			if next := j0 + keyBlock; next < seen {
				h.expectKeys(&s.tiles, &o.K, pair, next, min(keyBlock, seen-next))
				h.expectKeys(&s.tiles, &o.V, pair, next, min(keyBlock, seen-next))
			} else if task+1 < tasks {
				pair, i0, n := place(task + 1)
				next := h.firstBlock(pair, i0)
				h.expectQueries(&s.tiles, &o.Q, pair, i0, n)
				h.expectKeys(&s.tiles, &o.K, pair, next, min(keyBlock, h.keys-next))
				h.expectKeys(&s.tiles, &o.V, pair, next, min(keyBlock, h.keys-next))
			}
			if j0 == from {
				s.expectStore(o.Out, h.row(pair, h.queries, i0), h.column(pair, 0), n, h.perKV*h.dim)
			}
			for r := 0; r < rows; r += s.mr {
				height := min(s.mr, rows-r)
				visible := s.visible[:height]
				width := h.visible(visible, position+i0-j0, r, keys)
				first := h.firstBlock(pair, i0+r/h.perKV) // the rows' first block
				if width == 0 || j0 < first {
					continue
				}
				s.prefetchNext()
				highest, top, total := s.highest[:height], s.top[r:][:height], s.total[r:][:height]
				s.multiplyPairs(s.s, height, width, h.dim, &s.q, r, &s.kt)
				if h.starts != nil {
					h.hideScores(s.s, pair, i0, r, j0, visible)
				}
				simd.MaxRows(highest, s.s.x, s.s.ld, visible)
				for i, high := range highest {
					high *= h.scale2
					switch old := top[i]; {
					case j0 == first:
						top[i], total[i] = high, 0
					case high > old:
						rescale := simd.Exp2(old - high)
						top[i] = high
						total[i] *= rescale
						simd.Scale(s.o.row(r+i, h.dim), rescale)
					}
				}
				largest := top
				if h.starts != nil {
					largest = finite(highest, top)
				}
				s.weigh(s.s, width, visible, h.scale2, largest, total)
				s.matMul(s.o.at(r, 0), height, h.dim, width, &s.weights, 0, &s.v, 0, j0 > first)
			}
		}
		for r := 0; r < rows; r += s.mr {
			inverse := s.highest[:min(s.mr, rows-r)]
			for i := range inverse {
				inverse[i] = 1 / s.total[r+i]
			}
			simd.ScaleRows(s.o.x[r*s.o.ld:], s.o.ld, h.dim, inverse)
		}
		h.storeQueries(o.Out, worker, pair, i0, n, s.o)
		if o.LSE == nil {
			return
		}
		for r := range rows { // in a loop of their own, logarithms overlap in the pipeline
			o.LSE[h.lseIndex(pair, i0, r)] = float32(float64(s.top[r])*math.Ln2 + math.Log(float64(s.total[r])))
		}
	}
	return cast.Storing(func() {
		position = int(backend.ControlFrom(o.Control).Position)
		p.Run(tasks, task)
	}, o.Out)
}

// visible sets visible to how many keys of a block each row from r on sees. ahead is
// the position of the rows' first query less that of the first key. Later rows see at
// least as many keys; visible returns the count of the last row.
func (h *heads) visible(visible []int, ahead, r, keys int) (width int) {
	perKV := h.perKV
	seen, head := ahead+r/perKV+1, r%perKV
	for i := range visible {
		width = max(0, min(seen, keys))
		visible[i] = width
		if head++; head == perKV {
			seen, head = seen+1, 0
		}
	}
	return width
}

// storeQueries stores the rows of n queries of a pair from i on.
func (h *heads) storeQueries(out *cast.Output, worker, pair, i, n int, x sheet) {
	for g := range h.perKV {
		out.StoreRows(worker, h.row(pair, h.queries, i), h.column(pair, g), x.x[g*x.ld:], h.perKV*x.ld, n, h.dim)
	}
}

// start returns the first key that a query of a pair sees.
func (h *heads) start(pair, i int) int {
	if h.starts == nil {
		return 0
	}
	return max(0, min(int(h.starts[pair/h.kv*h.queries+i]), i))
}

// firstBlock returns the first key of the block in which start is.
func (h *heads) firstBlock(pair, i int) int { return h.start(pair, i) / keyBlock * keyBlock }

// hideScores sets the scores of keys before a row's start to -Inf, in a block of keys that
// begins at key j0. Row 0 of scores is row r of a task that begins at query i0.
func (h *heads) hideScores(scores sheet, pair, i0, r, j0 int, visible []int) {
	for i, n := range visible {
		row := scores.row(i, n)
		for j := range min(n, max(0, h.start(pair, i0+(r+i)/h.perKV)-j0)) {
			row[j] = float32(math.Inf(-1))
		}
	}
}

// finite copies top to dst, with 0 in place of -Inf, the maximum of a row that has seen no key
// yet: all its weights are 0 then. It returns dst.
func finite(dst, top []float32) []float32 {
	for i, x := range top {
		if math.IsInf(float64(x), -1) {
			x = 0
		}
		dst[i] = x
	}
	return dst
}
