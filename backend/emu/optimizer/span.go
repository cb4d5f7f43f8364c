package optimizer

import (
	"octet/backend/emu/memory"
	"octet/backend/emu/pool"
)

// The optimizer's ops work on lists of tensors, whose elements are cut into spans by
// the shapes alone.

// span is a run of elements of one tensor of a list.
type span struct {
	tensor   int
	row, col int // where it begins
	n        int
}

// spans cuts a list of tensors into spans of n elements, fewer at the end of a
// row. A tensor without gaps counts as one row.
func spans(list []memory.Matrix, n int) []span {
	var all []span
	for i, t := range list {
		rows, cols := t.Rows, t.Cols
		if contiguous(&t) {
			rows, cols = 1, rows*cols
		}
		for _, s := range rowSpans(rows, cols, n) {
			s.tensor = i
			all = append(all, s)
		}
	}
	return all
}

// contiguous reports whether there are no gaps between the rows of m.
func contiguous(m *memory.Matrix) bool { return m.LD == m.Cols || m.Rows == 1 }

// rowSpans cuts each row into spans of n elements, fewer at its end.
func rowSpans(rows, cols, n int) (list []span) {
	for row := range rows {
		for col := 0; col < cols; col += n {
			list = append(list, span{row: row, col: col, n: min(n, cols-col)})
		}
	}
	return list
}

// taskSpans is how many spans of AdamW form a task: enough that many workers do not
// contend for tasks.
const taskSpans = 8

// eachSpan returns a function that runs f over n spans.
func eachSpan(p *pool.Pool, n int, f func(worker, span int)) func() {
	task := func(worker, task int) {
		for s := task * taskSpans; s < min(n, (task+1)*taskSpans); s++ {
			f(worker, s)
		}
	}
	return func() { p.Run(pool.CeilDiv(n, taskSpans), task) }
}
