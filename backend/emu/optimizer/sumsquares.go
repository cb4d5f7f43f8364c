package optimizer

import (
	"slices"

	"octet/backend/emu/memory"
	"octet/backend/emu/pool"
	"octet/backend/emu/simd"
)

// squareSpan is the elements of a span of SumSquares. It is long because prefetches at
// its end fetch another worker's span.
const squareSpan = 16384

// SumSquares returns a function that sets out to the sum of squares of all elements of
// list. It also records extents[i] of list[i]; nil skips it, and so does a matrix with gaps
// between its rows, which has no extents.
func SumSquares(p *pool.Pool, list []memory.Matrix, extents []*Extents, out []float32) func() {
	noted := slices.Clone(extents)
	for i := range list {
		if !contiguous(&list[i]) {
			noted[i] = nil
		}
	}
	all := spans(list, squareSpan)
	partial := make([]float64, len(all))
	p.Reserve(squareSpan)
	task := func(worker, task int) {
		s := &all[task]
		x := list[s.tensor].Piece(p.Scratch[worker], s.row, s.col, s.n)
		partial[task] = simd.SumSquares(x)
		if e := noted[s.tensor]; e.wanted() {
			e.note(s.col, x)
		}
	}
	return func() {
		p.Run(len(all), task)
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
