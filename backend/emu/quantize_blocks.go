package emu

import (
	"math"

	"octet/backend"
	"octet/backend/emu/pool"
	"octet/backend/emu/simd"
	"octet/fp8"
)

// blockCast stores a matrix with a scale per block, which follows from the block's
// elements. A task has whole blocks and computes first their amaxes and scales, then
// their codes. Rows and columns are those of the source, also for a transposed cast.
type blockCast struct {
	load         loader
	store        *emitter // of the scaled elements
	rows, cols   int
	height       int // of a block
	width        int
	stepI, stepJ int // scale index steps to the block below, and to the right
	f32          []float32
	e8m0         []uint8
	powers       *[256]float32 // values of the E8M0 codes
	dtype        fp8.DType
	limit        float32
	pow2         bool

	piece              int         // columns loaded at a time
	maxima, scaled     [][]float32 // by worker: of a piece
	scales             [][]float32 // by worker: of a task's blocks
	wide               int         // blocks in a row of a task's blocks
	taskRows, taskCols int
}

// blockCast binds a cast of rows × cols elements, which load returns.
func (b *binder) blockCast(load loader, c backend.Cast, rows, cols int) func() {
	q := &blockCast{
		load: load, store: b.emitter([]backend.Cast{c}, cols), rows: rows, cols: cols,
		height: c.Out.Block.Rows, width: c.Out.Block.Cols,
		dtype: c.Out.DType, limit: c.Limit, pow2: c.Rule == fp8.Pow2Down,
	}
	_, q.stepI = c.Out.Block.ScaleShape(c.Out.Rows(), c.Out.Cols())
	q.stepJ = 1
	if c.Transpose {
		q.height, q.width = q.width, q.height
		q.stepI, q.stepJ = q.stepJ, q.stepI
	}
	if c.ScaleInv.DType == fp8.E8M0 {
		q.e8m0, q.powers = slice[uint8](b, c.ScaleInv), fp8.E8M0.Table()
	} else {
		q.f32 = b.f32(c.ScaleInv)
	}
	if q.height == 0 {
		q.height = rows
	}
	if q.width == 0 {
		q.width = cols
	}
	q.split(c.Transpose)
	q.maxima, q.scaled = b.scratch(q.piece), b.scratch(q.piece)
	q.scales = b.scratch(q.wide * pool.CeilDiv(q.taskRows, q.height))
	across := pool.CeilDiv(cols, q.taskCols)
	task := func(worker, task int) {
		q.run(worker, task/across*q.taskRows, task%across*q.taskCols)
	}
	return storing(func() { b.pool.Run(pool.CeilDiv(rows, q.taskRows)*across, task) }, q.store)
}

// Maximum columns of a task whose blocks have many rows. The second visit should find
// the rows in the second-level cache (blockColumns), or in the third-level cache if
// blocks have all rows (fullColumns).
const (
	blockColumns = 512
	fullColumns  = 256
)

// split sets the sizes of tasks and pieces, which depend on the shape alone.
func (q *blockCast) split(transposed bool) {
	q.piece = min(q.cols, pieceWidth(q.cols))
	switch q.height {
	case 1:
	case q.rows:
		q.piece = min(q.piece, fullColumns)
	default:
		q.piece = min(q.piece, blockColumns)
	}
	q.taskCols = min(q.cols, max(1, q.piece/q.width)*q.width)
	q.piece = min(q.piece, q.taskCols)
	q.wide = pool.CeilDiv(q.taskCols, q.width)
	q.taskRows = max(1, taskElems/q.taskCols)
	if transposed {
		q.taskRows = stripRows
	}
	q.taskRows = min(pool.RoundUp(q.taskRows, q.height), q.rows)
}

// run casts a task's blocks, the first of which begins at (top, left).
func (q *blockCast) run(worker, top, left int) {
	bottom, right := min(top+q.taskRows, q.rows), min(left+q.taskCols, q.cols)
	scales := q.scales[worker]
	for row := top; row < bottom; row += q.height {
		s := scales[(row-top)/q.height*q.wide:][:pool.CeilDiv(right-left, q.width)]
		clear(s)
		for col := left; col < right; col += q.piece {
			q.fold(s, worker, row, col, left, min(q.piece, right-col))
		}
		i := row/q.height*q.stepI + left/q.width*q.stepJ
		for j, amax := range s {
			s[j] = q.scale(amax, i)
			i += q.stepJ
		}
	}
	for col := left; col < right; col += q.piece {
		n := min(q.piece, right-col)
		scaled := q.scaled[worker][:n]
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
				q.store.store(worker, row, col, scaled)
			}
		}
	}
}

// fold includes n columns, from col on, of the blocks whose first row is row in their
// amaxes, top. left is the first column of the task.
func (q *blockCast) fold(top []float32, worker, row, col, left, n int) {
	maxima := q.load(worker, row, col, n)
	if q.height > 1 {
		x := maxima
		maxima = q.maxima[worker][:n]
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

// scale stores the scale_inv of block i, whose largest magnitude is amax, and returns
// the scale: see backend.Cast.
func (q *blockCast) scale(amax float32, i int) float32 {
	if q.e8m0 != nil {
		code := fp8.MXScale(amax, q.dtype, fp8.RoundUp)
		q.e8m0[i] = code
		return q.powers[254-code] // NaN is its own inverse
	}
	s, ok := fp8.ScaleFor(amax, q.limit, q.pow2)
	q.f32[i] = 1 / s
	if !ok && amax != 0 {
		q.f32[i] = float32(math.NaN())
	}
	return s
}
