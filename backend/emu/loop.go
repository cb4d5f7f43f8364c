package emu

import (
	"octet/backend"
	"octet/backend/emu/cast"
	"octet/backend/emu/memory"
)

// rowOf returns an op's row. For a backend.Looped op without one it returns a row that runs
// its loop.
func rowOf(op backend.Op) (r row, ok bool) {
	if r, ok = ops.Of(op); ok {
		return r, true
	}
	_, ok = op.(backend.Looped)
	return row{bind: bindLoop}, ok
}

func bindLoop(b *binder, n *backend.Node) (kernel, error) {
	return compute(b.loop(n.Op.(backend.Looped).Loop())), nil
}

// loop is a bound backend.Loop.
type loop struct {
	f   func(out, in [][]float32)
	in  []loopInput
	out []loopOutput
	// outArgs[w] and inArgs[w] are the arguments of worker w's calls of f.
	outArgs, inArgs [][][]float32
}

type loopInput struct {
	memory.Matrix
	oneRow  bool // all rows of the result read row 0
	buffers [][]float32
}

type loopOutput struct {
	*cast.Output
	cols    int
	buffers [][]float32
}

func (b *binder) loop(from backend.Loop) func() {
	l := &loop{f: from.F}
	buffers := b.pieceBuffers
	if from.WholeRows {
		buffers = b.scratch
	}
	height, cols := backend.ResultShape(from.Out[0])
	widest := cols
	for _, t := range from.In {
		widest = max(widest, t.Cols())
		l.in = append(l.in, loopInput{b.matrix(t), t.Rows() == 1, buffers(t.Cols())})
	}
	var outputs []*cast.Output
	for _, casts := range from.Out {
		_, n := backend.ResultShape(casts)
		widest = max(widest, n)
		outputs = append(outputs, b.output(casts))
		l.out = append(l.out, loopOutput{outputs[len(outputs)-1], n, buffers(n)})
	}
	for range b.pool.Size() {
		l.outArgs = append(l.outArgs, loopArgs(len(l.out)))
		l.inArgs = append(l.inArgs, loopArgs(len(l.in)))
	}
	if !from.WholeRows {
		return cast.Storing(b.pool.Pieces(height, cols, l.compute), outputs...)
	}
	run := b.pool.Rows(height, widest, func(worker, row int) { l.compute(worker, row, 0, widest) })
	return cast.Storing(run, outputs...)
}

// loopArgs returns n slices in memory that shares no cache line with another worker's.
func loopArgs(n int) [][]float32 { return make([][]float32, n+8)[:n] }

// compute computes n elements from (row, col) on, fewer for narrower operands.
func (l *loop) compute(worker, row, col, n int) {
	out, in := l.outArgs[worker], l.inArgs[worker]
	for i := range l.in {
		x, from := &l.in[i], row
		if x.oneRow {
			from = 0
		}
		in[i] = x.Piece(x.buffers[worker], from, col, min(n, x.Cols-col))
	}
	for i := range l.out {
		o := &l.out[i]
		out[i] = o.buffers[worker][:min(n, o.cols-col)]
	}
	l.f(out, in)
	for i := range l.out {
		l.out[i].Store(worker, row, col, out[i])
	}
}
