package chart

import (
	"math"
	"slices"
)

// Table holds the numbers of a chart: a row of cells for each value of the x axis. An
// empty cell is a gap.
type Table struct {
	Head []string
	Rows [][]string
}

// Table returns at most rows rows of the chart's numbers, equidistant in the order of x, and
// always the last one. A column is a line.
func (c *Chart) Table(rows int) Table {
	t := Table{Head: []string{c.X.Label}}
	at := map[float64][]string{} // cells by x
	var xs []float64
	for i, l := range c.Lines {
		t.Head = append(t.Head, l.Name)
		for j, x := range l.X {
			if at[x] == nil {
				at[x] = make([]string, len(c.Lines))
				xs = append(xs, x)
			}
			if v := l.Y[j]; !math.IsNaN(v) && !math.IsInf(v, 0) {
				at[x][i] = Number(v)
			}
		}
	}
	slices.Sort(xs) // lines may have different steps
	t.choose(xs, rows, func(i int, x float64) []string { return at[x] })
	return t
}

// Table returns at most rows positions of the heat map, as Chart.Table does. A column of
// the table is a row of the heat map.
func (m *HeatMap) Table(rows int) Table {
	t := Table{Head: append([]string{m.X.Label}, m.Rows...)}
	t.choose(m.At, rows, func(i int, _ float64) (cells []string) {
		for _, row := range m.Data {
			cells = append(cells, Number(row[i]))
		}
		return cells
	})
	return t
}

// choose appends rows for equidistant elements of xs.
func (t *Table) choose(xs []float64, rows int, cells func(i int, x float64) []string) {
	rows = min(rows, len(xs))
	for r := range rows {
		i := len(xs) - 1 - (rows-1-r)*len(xs)/rows
		t.Rows = append(t.Rows, append([]string{Number(xs[i])}, cells(i, xs[i])...))
	}
}
