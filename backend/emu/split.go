package emu

// Elementwise ops are split into tiles of rows and columns by the shape alone:
// each element is computed by one task, whatever the number of threads.

// pieces returns a run of f over a matrix of rows × cols: f computes n
// elements of one row from (row, col) on, n being at most the length of
// pieceBuffers(cols). A task's pieces follow each other in memory.
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

// blocks returns a run of f over tasks of height rows and width columns, which a
// task goes through from top to bottom.
func (b *binder) blocks(rows, cols, height, width int, f func(worker, row, col, n int)) func() {
	across := parts(cols, width)
	task := func(worker, task int) {
		col := task % across * width
		n := min(width, cols-col)
		top := task / across * height
		for row := top; row < min(rows, top+height); row++ {
			f(worker, row, col, n)
		}
	}
	return func() { b.pool.run(parts(rows, height)*across, task) }
}

// pieceElems is the most elements that f gets at once: few enough that an op's
// three to six FP32 buffers of them stay in the first-level cache, enough that
// the calls do not show.
const pieceElems = 2048

// pieceWidth cuts a row into equal pieces, whole cache lines.
func pieceWidth(cols int) int {
	return roundUp(parts(cols, parts(cols, pieceElems)), 16)
}

// pieceBuffers is room for a piece of a row of cols elements for each worker.
func (b *binder) pieceBuffers(cols int) [][]float32 {
	return b.scratch(min(cols, pieceWidth(cols)))
}
