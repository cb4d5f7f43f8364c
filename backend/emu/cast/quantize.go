package cast

import (
	"octet/backend/emu/memory"
	"octet/backend/emu/pool"
	"octet/backend/emu/simd"
)

// Quantize returns a function that stores x, times the scales of its blocks, of each row and
// of each column, through casts. nil, and the zero value of blocks, omit a scale. The casts without block scales share one pass over x;
// each other cast has a pass of its own, which reads x twice. Scratch of p holds the
// elements that a worker casts.
func Quantize(p *pool.Pool, x memory.Matrix, blocks memory.BlockScales, rowScale, colScale []float32, casts []Cast) func() {
	var one, blocked []Cast
	for _, c := range casts {
		if c.blocked() {
			blocked = append(blocked, c)
		} else {
			one = append(one, c)
		}
	}
	out := NewOutput(p, one)
	height, width := out.taskShape()
	width = min(width, x.Cols)
	from := &source{p, x, blocks, rowScale, colScale, pool.RoundUp(max(width, pool.PieceWidth(x.Cols)), 16)}
	p.Reserve(from.width)
	var runs []func()
	for _, c := range blocked {
		runs = append(runs, newBlockCast(from, c))
	}
	if len(one) > 0 {
		piece := func(worker, row, col, n int) { out.Store(worker, row, col, from.load(worker, row, col, n)) }
		if x.U16 != nil && rowScale == nil && colScale == nil && out.requantizes() {
			piece = func(worker, row, col, n int) { out.requantize(worker, row, col, n, &x) }
		}
		run := p.Pieces(x.Rows, x.Cols, piece)
		if width > 0 {
			run = p.Blocks(x.Rows, x.Cols, height, width, piece)
		}
		runs = append(runs, Storing(run, out))
	}
	return func() {
		for _, run := range runs {
			run()
		}
	}
}

// source reads the matrix that Quantize casts.
type source struct {
	pool               *pool.Pool
	x                  memory.Matrix
	blocks             memory.BlockScales // of x
	rowScale, colScale []float32
	width              int // floats of each worker's scratch, and maximum elements of load
}

// scaleBlocks multiplies the elements of v, which begin at (row, col), by the scales of their
// blocks.
func (s *source) scaleBlocks(v []float32, row, col int) {
	for len(v) > 0 {
		n := len(v)
		if width := s.blocks.Cols; width > 0 {
			n = min(n, width-col%width)
		}
		simd.Scale(v[:n], s.blocks.Element(row, col))
		v, col = v[n:], col+n
	}
}

// load returns n scaled elements of one row from (row, col) on. The caller must not write
// to them.
func (s *source) load(worker, row, col, n int) []float32 {
	buffer := s.pool.Scratch[worker]
	v, scaled := s.x.Piece(buffer, row, col, n), buffer[:n]
	if s.blocks.Across > 0 { // x is in eight bits, so that v is the buffer
		s.scaleBlocks(scaled, row, col)
	}
	if s.rowScale != nil {
		copy(scaled, v)
		simd.Scale(scaled, s.rowScale[row])
		v = scaled
	}
	if s.colScale != nil {
		simd.Multiply(scaled, v, s.colScale[col:col+n])
		v = scaled
	}
	return v
}
