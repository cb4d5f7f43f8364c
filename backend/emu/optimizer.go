package emu

import (
	"math"

	"octet/backend"
	"octet/backend/emu/memory"
	"octet/backend/emu/pool"
	"octet/backend/emu/simd"
)

// The optimizer's ops work on lists of tensors, whose elements are cut into spans by
// the shapes alone.

// span is a run of elements of one tensor of a list.
type span struct {
	tensor   int
	row, col int // where it begins
	n        int
}

// spans cuts a list of tensors into spans of n elements, fewer at the end of a
// row. A tensor without gaps counts as one row.
func spans(list []*backend.Tensor, n int) []span {
	var all []span
	for i, t := range list {
		rows, cols := t.Rows(), t.Cols()
		if t.Contiguous() {
			rows, cols = 1, t.Elems()
		}
		for _, s := range rowSpans(rows, cols, n) {
			s.tensor = i
			all = append(all, s)
		}
	}
	return all
}

// rowSpans cuts each row into spans of n elements, fewer at its end.
func rowSpans(rows, cols, n int) (list []span) {
	for row := range rows {
		for col := 0; col < cols; col += n {
			list = append(list, span{row: row, col: col, n: min(n, cols-col)})
		}
	}
	return list
}

// taskSpans is how many spans of AdamW form a task: enough that many workers do not
// contend for tasks.
const taskSpans = 8

// eachSpan returns a function that runs f over n spans.
func (b *binder) eachSpan(n int, f func(worker, span int)) func() {
	task := func(worker, task int) {
		for s := task * taskSpans; s < min(n, (task+1)*taskSpans); s++ {
			f(worker, s)
		}
	}
	return func() { b.pool.Run(pool.CeilDiv(n, taskSpans), task) }
}

// squareSpan is the elements of a span of SumSquares. It is long because prefetches at
// its end fetch another worker's span.
const squareSpan = 16384

var _ = implement((*binder).sumSquares)

func (b *binder) sumSquares(o *backend.SumSquares) func() {
	list, noted := make([]memory.Matrix, len(o.X)), make([]*extents, len(o.X))
	for i, x := range o.X {
		list[i], noted[i] = b.matrix(x), b.extents[x]
	}
	all, out := spans(o.X, squareSpan), b.f32(o.Out)
	partial := make([]float64, len(all))
	b.pool.Reserve(squareSpan)
	task := func(worker, task int) {
		s := &all[task]
		x := list[s.tensor].Piece(b.pool.Scratch[worker], s.row, s.col, s.n)
		partial[task] = simd.SumSquares(x)
		if e := noted[s.tensor]; e.wanted() {
			e.note(s.col, x)
		}
	}
	return func() {
		b.pool.Run(len(all), task)
		for _, e := range noted {
			if e.wanted() {
				e.known = true
			}
		}
		var total float64
		for _, p := range partial {
			total += p
		}
		out[0] = float32(total)
	}
}

var _ = implement((*binder).stepGate)

// stepGate computes in float64. For a skipped step it records the norm unchanged; the
// coefficient is then unused.
func (b *binder) stepGate(o *backend.StepGate) func() {
	sumSquares, amax := b.f32(o.SumSquares), b.f32(o.Amax)
	step, skip := b.i32(o.Step), b.i32(o.Skip)
	norm, coef := b.f32(o.GradNorm), b.f32(o.Coef)
	return func() {
		root := math.Sqrt(float64(sumSquares[0]))
		norm[0], coef[0] = float32(root), 1
		if o.Clip > 0 {
			coef[0] = float32(min(1, float64(o.Clip)/(root+1e-6)))
		}
		finite := isFinite(sumSquares[0])
		for _, a := range amax {
			finite = finite && isFinite(a)
		}
		if finite {
			skip[0] = 0
			step[0]++
		} else {
			skip[0] = 1
		}
	}
}

func isFinite(x float32) bool { return x-x == 0 }
