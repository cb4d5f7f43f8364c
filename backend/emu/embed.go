package emu

import (
	"math"

	"octet/backend"
	"octet/backend/emu/cast"
	"octet/backend/emu/pool"
	"octet/backend/emu/simd"
)

var _ = implement((*binder).embed)

// embed gives a token outside the table a row of NaN, which shows in the loss. The host
// already checks ids.
func (b *binder) embed(o *backend.Embed) func() {
	table, ids, part := b.matrix(o.Table), b.integers(o.IDs), b.part(o.Split, o.Control, o.Table.Rows())
	result := b.output(o.Out)
	buffers := b.pieceBuffers(table.Cols)
	run := b.pool.Pieces(o.IDs.Elems(), table.Cols, func(worker, token, col, n int) {
		id := ids(token)
		if row, ok := part.local(id); ok {
			result.Store(worker, token, col, table.Piece(buffers[worker], row, col, n))
			return
		}
		other := buffers[worker][:n]
		if clear(other); uint(id) >= uint(part.all) {
			fillWith(other, float32(math.NaN()))
		}
		result.Store(worker, token, col, other)
	})
	return cast.Storing(func() {
		part.locate()
		run()
	}, result)
}

// part is the part of a vocabulary that an op with Split has, or all of it.
type part struct {
	split  backend.Group
	words  []int32 // of step.control
	n, all int     // size of the part, and of the whole
	first  int     // index of the part's first element in the whole
}

// part returns the part of an op whose operand holds n elements of the vocabulary.
func (b *binder) part(split backend.Group, control *backend.Tensor, n int) *part {
	return &part{split: split, words: b.i32(control), n: n, all: n * max(1, split.Size)}
}

// locate finds the part of this rank. It precedes local in every run.
func (p *part) locate() {
	if !p.split.All() {
		p.first = p.split.Index(int(backend.ControlFrom(p.words).Rank)) * p.n
	}
}

// local returns the index in the part of an element of the whole, and whether the part has it.
func (p *part) local(i int) (int, bool) {
	i -= p.first
	return i, uint(i) < uint(p.n)
}

var _ = implement((*binder).embedGrad)

// embedGrad gives each task some columns of the table's gradient. A task goes through
// all tokens, so their order is the order of addition, whatever the split. Two tasks per
// worker read long runs of each row and still balance the load.
func (b *binder) embedGrad(o *backend.EmbedGrad) func() {
	ids, dout, grad := b.integers(o.IDs), b.matrix(o.DOut), b.matrix(o.DTable)
	tokens, cols := o.DOut.Rows(), grad.Cols
	part := b.part(o.Split, o.Control, grad.Rows)
	width := pool.RoundUp(pool.CeilDiv(cols, 2*b.pool.Size()), 16)
	buffers := b.scratch(width)
	task := func(worker, task int) {
		col := task * width
		n := min(width, cols-col)
		for token := range tokens {
			if row, ok := part.local(ids(token)); ok {
				at := row*grad.LD + col
				simd.Add(grad.F32[at:at+n], dout.Piece(buffers[worker], token, col, n))
			}
		}
	}
	tasks := pool.CeilDiv(cols, width)
	zero := b.fill(&backend.Fill{Out: o.DTable})
	return func() {
		if part.locate(); !o.Accumulate {
			zero()
		}
		b.pool.Run(tasks, task)
	}
}
