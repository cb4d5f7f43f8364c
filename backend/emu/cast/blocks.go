package cast

import (
	"math"

	"octet/backend/emu/pool"
	"octet/backend/emu/simd"
	"octet/fp8"
)

// blockCast stores a matrix with a scale per block, which follows from the block's
// elements. A task has whole blocks and computes first their amaxes and scales, then
// their codes. Rows and columns are those of the source, also for a transposed cast.
type blockCast struct {
	*source
	Cast
	out          *Output // of the scaled elements
	rows, cols   int
	height       int // of a block
	width        int
	stepI, stepJ int // scale index steps to the block below, and to the right
	choice       fp8.BlockScale

	piece              int // columns loaded at a time
	buffer             int // floats of scratch for a piece
	wide               int // blocks in a row of a task's blocks
	taskRows, taskCols int
}

// newBlockCast returns a function that casts the elements of x. It keeps its buffers in
// the workers' scratch, after that of x.
func newBlockCast(x *source, c Cast) func() {
	q := &blockCast{
		source: x, Cast: c,
		height: c.Blocks.Rows, width: c.Blocks.Cols, stepI: c.Blocks.Across, stepJ: 1,
		choice: fp8.BlockScale{Elements: c.Out.DType, Stored: c.Blocks.DType, Rule: c.Rule, Limit: c.Limit, Outer: 1},
	}
	c.Scale = nil // part of the blocks' scales
	q.out = NewOutput(x.pool, []Cast{c})
	q.rows, q.cols = c.shape()
	if c.Transpose {
		q.height, q.width = q.width, q.height
		q.stepI, q.stepJ = q.stepJ, q.stepI
	}
	if q.height == 0 {
		q.height = q.rows
	}
	if q.width == 0 {
		q.width = q.cols
	}
	q.split()
	x.pool.Reserve(x.width + 2*q.buffer + q.wide*pool.CeilDiv(q.taskRows, q.height))
	across := pool.CeilDiv(q.cols, q.taskCols)
	task := func(worker, task int) {
		q.run(worker, task/across*q.taskRows, task%across*q.taskCols)
	}
	return Storing(func() {
		if q.Scale != nil {
			q.choice.Outer = q.Scale[0]
		}
		x.pool.Run(pool.CeilDiv(q.rows, q.taskRows)*across, task)
	}, q.out)
}

// Maximum columns of a task whose blocks have many rows. The second visit should find
// the rows in the second-level cache (blockColumns), or in the third-level cache if
// blocks have all rows (fullColumns).
const (
	blockColumns = 512
	fullColumns  = 256
)

// split sets the sizes of tasks and pieces, which depend on the shape alone.
func (q *blockCast) split() {
	q.piece = pool.PieceWidth(q.cols)
	switch q.height {
	case 1:
	case q.rows:
		q.piece = min(q.piece, fullColumns)
	default:
		q.piece = min(q.piece, blockColumns)
	}
	q.taskCols = min(q.cols, max(1, q.piece/q.width)*q.width)
	q.piece = min(q.piece, q.taskCols)
	q.buffer = pool.RoundUp(q.piece, 16)
	q.wide = pool.CeilDiv(q.taskCols, q.width)
	q.taskRows = max(1, pool.TaskElems/q.taskCols)
	if q.Transpose {
		q.taskRows = stripRows
	}
	q.taskRows = min(pool.RoundUp(q.taskRows, q.height), q.rows)
}

// run casts a task's blocks, the first of which begins at (top, left).
func (q *blockCast) run(worker, top, left int) {
	bottom, right := min(top+q.taskRows, q.rows), min(left+q.taskCols, q.cols)
	scratch := q.pool.Scratch[worker][q.source.width:]
	maxima, scaled, scales := scratch[:q.buffer], scratch[q.buffer:2*q.buffer], scratch[2*q.buffer:]
	for row := top; row < bottom; row += q.height {
		s := scales[(row-top)/q.height*q.wide:][:pool.CeilDiv(right-left, q.width)]
		clear(s)
		for col := left; col < right; col += q.piece {
			q.fold(s, maxima, worker, row, col, left, min(q.piece, right-col))
		}
		i := row/q.height*q.stepI + left/q.width*q.stepJ
		for j, amax := range s {
			s[j] = q.scale(amax, i)
			i += q.stepJ
		}
	}
	for col := left; col < right; col += q.piece {
		n := min(q.piece, right-col)
		scaled := scaled[:n]
		for first := top; first < bottom; first += q.height {
			s := scales[(first-top)/q.height*q.wide:]
			for row := first; row < min(first+q.height, bottom); row++ {
				x := q.load(worker, row, col, n)
				if q.width == 1 {
					simd.Multiply(scaled, x, s[col-left:])
				} else {
					copy(scaled, x)
					q.eachBlock(col, left, n, func(j, from, to int) { simd.Scale(scaled[from:to], s[j]) })
				}
				q.out.Store(worker, row, col, scaled)
			}
		}
	}
}

// fold includes n columns, from col on, of the blocks whose first row is row in their
// amaxes, top. left is the first column of the task; buffer is for the maxima of columns.
func (q *blockCast) fold(top, buffer []float32, worker, row, col, left, n int) {
	maxima := q.load(worker, row, col, n)
	if q.height > 1 {
		x := maxima
		maxima = buffer[:n]
		clear(maxima)
		for end := min(row+q.height, q.rows); ; {
			simd.MaxMagnitudes(maxima, x)
			if row++; row == end {
				break
			}
			x = q.load(worker, row, col, n)
		}
	}
	if q.width == 1 {
		simd.MaxMagnitudes(top[col-left:][:n], maxima)
		return
	}
	q.eachBlock(col, left, n, func(j, from, to int) { top[j] = fp8.MaxAmax(top[j], fp8.Amax(maxima[from:to])) })
}

// eachBlock calls f for each block that overlaps n columns from col on: with the block's
// index j, counted from column left, and the range [from, to) of the n columns in it.
func (q *blockCast) eachBlock(col, left, n int, f func(j, from, to int)) {
	j := (col - left) / q.width
	for from, to := 0, left+(j+1)*q.width-col; from < n; from, to = to, to+q.width {
		f(j, from, min(to, n))
		j++
	}
}

// scale stores the scale_inv of block i, whose largest magnitude is amax, and returns the
// factor of its elements: see backend.Cast.
func (q *blockCast) scale(amax float32, i int) float32 {
	code, factor := q.choice.Choose(amax)
	if q.Blocks.F32 != nil {
		q.Blocks.F32[i] = math.Float32frombits(code)
	} else {
		q.Blocks.Codes[i] = uint8(code)
	}
	return factor
}
