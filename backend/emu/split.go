package emu

// Elementwise ops are split into tiles of rows and columns by the shape alone:
// each element is computed by one task, whatever the number of threads.

// pieces returns a run of f over a matrix of rows × cols: f computes n
// elements of one row from (row, col) on, n being at most the length of
// pieceBuffers(cols).
func (b *binder) pieces(rows, cols int, f func(worker, row, col, n int)) func() {
	width := pieceWidth(cols)
	across := parts(cols, width)
	down, height := rowTasks(rows, width)
	task := func(worker, task int) {
		col := task % across * width
		n := min(width, cols-col)
		top := task / across * height
		for row := top; row < min(rows, top+height); row++ {
			f(worker, row, col, n)
		}
	}
	return func() { b.pool.run(down*across, task) }
}

// pieceWidth cuts a row into equal parts that fit a task, whole cache lines.
func pieceWidth(cols int) int {
	return roundUp(parts(cols, parts(cols, taskElems)), 16)
}

// pieceBuffers is room for a piece of a row of cols elements for each worker.
func (b *binder) pieceBuffers(cols int) [][]float32 {
	return b.scratch(min(cols, pieceWidth(cols)))
}
