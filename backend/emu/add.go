package emu

import "octet/backend"

func (b *binder) add(o *backend.Add) func() {
	x, y := b.rows(o.A), b.rows(o.B)
	e := b.emitter(o.Out, x.cols)
	sums, others := b.pieceBuffers(x.cols), b.pieceBuffers(x.cols)
	run := b.pieces(o.A.Rows(), x.cols, func(worker, row, col, n int) {
		sum := sums[worker][:n]
		x.load(sum, row, col)
		addInto(sum, y.piece(others[worker], row, col, n))
		e.store(worker, row, col, sum)
	})
	return storing(run, e)
}

// addIntoGo is the specification of addInto: dst += x.
func addIntoGo(dst, x []float32) {
	x = x[:len(dst)]
	for i := range dst {
		dst[i] += x[i]
	}
}
