package emu

import "octet/backend/emu/pool"

// This file splits elementwise ops into tasks. The split depends only on the shape, and
// one task computes each element, so results do not depend on the number of threads.

// pieces returns a function that runs f over a matrix of rows × cols: f computes n
// elements of one row from (row, col) on, at most the length of pieceBuffers(cols). A
// task's pieces are consecutive in memory.
func (b *binder) pieces(rows, cols int, f func(worker, row, col, n int)) func() {
	_, height := rowTasks(rows, cols)
	piece := pieceWidth(cols)
	width := max(1, taskElems/piece) * piece
	return b.blocks(rows, cols, height, width, func(worker, row, col, n int) {
		for end := col + n; col < end; col += piece {
			f(worker, row, col, min(piece, end-col))
		}
	})
}

// blocks returns a function that runs f over tasks of height rows and width columns. A
// task handles its rows from top to bottom.
func (b *binder) blocks(rows, cols, height, width int, f func(worker, row, col, n int)) func() {
	across := pool.CeilDiv(cols, width)
	task := func(worker, task int) {
		col := task % across * width
		n := min(width, cols-col)
		top := task / across * height
		for row := top; row < min(rows, top+height); row++ {
			f(worker, row, col, n)
		}
	}
	return func() { b.pool.Run(pool.CeilDiv(rows, height)*across, task) }
}

// pieceElems is the maximum number of elements of a call of f: few enough that an op's
// three to six FP32 buffers stay in the first-level cache, enough to amortize the calls.
const pieceElems = 2048

// pieceWidth returns the length of the equal pieces of a row of cols elements: whole cache
// lines.
func pieceWidth(cols int) int {
	return pool.RoundUp(pool.CeilDiv(cols, pool.CeilDiv(cols, pieceElems)), 16)
}

// pieceBuffers returns, for each worker, a buffer for a piece of a row of cols elements.
func (b *binder) pieceBuffers(cols int) [][]float32 {
	return b.scratch(min(cols, pieceWidth(cols)))
}
