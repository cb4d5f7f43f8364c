package pool

// This file splits work into tasks. A split depends only on the shape, and one task
// computes each element, so results do not depend on the number of threads.

// CeilDiv returns n/size, rounded up.
func CeilDiv(n, size int) int { return (n + size - 1) / size }

// RoundUp returns n, rounded up to a multiple of unit.
func RoundUp(n, unit int) int { return CeilDiv(n, unit) * unit }

// Balanced reports whether tasks of equal size keep the workers busy for at least seven
// eighths of the time.
func Balanced(tasks, workers int) bool {
	return tasks*8 >= CeilDiv(tasks, workers)*workers*7
}

// TaskElems is about how many elements a task touches: enough to be worth handing out,
// few enough that the last tasks end at about the same time.
const TaskElems = 8192

// RowTasks splits rows of cols elements into tasks of about TaskElems elements.
func RowTasks(rows, cols int) (tasks, rowsPerTask int) {
	rowsPerTask = max(1, TaskElems/cols)
	return CeilDiv(rows, rowsPerTask), rowsPerTask
}

// Rows returns a function that runs f for each row of a matrix of rows × cols. A task
// handles its rows from top to bottom.
func (p *Pool) Rows(rows, cols int, f func(worker, row int)) func() {
	tasks, height := RowTasks(rows, cols)
	task := func(worker, task int) {
		for row := task * height; row < min(rows, (task+1)*height); row++ {
			f(worker, row)
		}
	}
	return func() { p.Run(tasks, task) }
}

// Pieces returns a function that runs f over a matrix of rows × cols: f computes n
// elements of one row from (row, col) on, at most PieceWidth(cols). A task's pieces are
// consecutive in memory.
func (p *Pool) Pieces(rows, cols int, f func(worker, row, col, n int)) func() {
	_, height := RowTasks(rows, cols)
	piece := PieceWidth(cols)
	width := max(1, TaskElems/piece) * piece
	return p.Blocks(rows, cols, height, width, func(worker, row, col, n int) {
		for end := col + n; col < end; col += piece {
			f(worker, row, col, min(piece, end-col))
		}
	})
}

// Blocks returns a function that runs f over tasks of height rows and width columns. A
// task handles its rows from top to bottom.
func (p *Pool) Blocks(rows, cols, height, width int, f func(worker, row, col, n int)) func() {
	across := CeilDiv(cols, width)
	task := func(worker, task int) {
		col := task % across * width
		n := min(width, cols-col)
		top := task / across * height
		for row := top; row < min(rows, top+height); row++ {
			f(worker, row, col, n)
		}
	}
	return func() { p.Run(CeilDiv(rows, height)*across, task) }
}

// pieceElems is the maximum number of elements of a piece: few enough that an op's three
// to six FP32 buffers stay in the first-level cache, enough to amortize the calls.
const pieceElems = 2048

// PieceWidth returns the length of the equal pieces of a row of cols elements: whole cache
// lines, unless the row is shorter.
func PieceWidth(cols int) int {
	return min(cols, RoundUp(CeilDiv(cols, CeilDiv(cols, pieceElems)), 16))
}
