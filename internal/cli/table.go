package cli

import (
	"io"
	"slices"
	"strings"
	"unicode/utf8"

	"octet/internal/writers"
)

// table is a table whose first column names the rows. On a narrow terminal it takes the short
// headings, then shortens names. If names would become too short or equal, it omits optional
// columns, the last one first. Pipes and files get the whole table.
type table struct {
	columns []column
	rows    [][]string
}

type column struct {
	head     string
	short    string // heading on a narrow terminal; empty: head
	optional bool
}

// gap is the number of spaces between columns.
const gap = 2

// minName is the smallest number of characters to which a narrow terminal shortens names.
const minName = 24

func (t *table) add(cells ...string) { t.rows = append(t.rows, cells) }

// print writes the table and, below it, the headings of the columns that it omits.
func (t *table) print(to io.Writer) error {
	limit := columnsOf(to)
	lines := [][]string{nil}
	for _, c := range t.columns {
		lines[0] = append(lines[0], c.head)
	}
	for _, row := range t.rows {
		lines = append(lines, slices.Clone(row))
	}
	tooWide := func() bool { return limit > 0 && widthOf(lines) > limit }
	if tooWide() {
		for i, c := range t.columns {
			if c.short != "" {
				lines[0][i] = c.short
			}
		}
	}
	var omitted []string
	for i := len(t.columns) - 1; tooWide() && !shortenNames(lines, limit); i-- {
		for i >= 0 && !t.columns[i].optional {
			i--
		}
		if i < 0 {
			break // the terminal breaks the lines
		}
		for j := range lines {
			lines[j] = slices.Delete(lines[j], i, i+1)
		}
		omitted = slices.Insert(omitted, 0, t.columns[i].head)
	}
	var b strings.Builder
	all := widths(lines)
	for _, line := range lines {
		for i, cell := range line {
			b.WriteString(cell)
			if i < len(line)-1 {
				b.WriteString(strings.Repeat(" ", all[i]-utf8.RuneCountInString(cell)+gap))
			}
		}
		b.WriteByte('\n')
	}
	if len(omitted) > 0 {
		b.WriteString(writers.Reflow("omitted on this terminal, but not in a pipe: "+strings.Join(omitted, ", ")+"\n", limit))
	}
	_, err := io.WriteString(to, b.String())
	return err
}

// shortenNames shortens the first column so that the lines fit a number of columns. It
// changes nothing and returns false if names would be too short or no longer distinct.
func shortenNames(lines [][]string, limit int) bool {
	longest := widths(lines)[0] + limit - widthOf(lines)
	if longest < minName {
		return false
	}
	names := map[string]string{} // by their short form
	for _, line := range lines {
		short := shorten(line[0], longest)
		if name, ok := names[short]; ok && name != line[0] {
			return false
		}
		names[short] = line[0]
	}
	for _, line := range lines {
		line[0] = shorten(line[0], longest)
	}
	return true
}

// widths returns the width of each column, in characters.
func widths(lines [][]string) []int {
	list := make([]int, len(lines[0]))
	for _, line := range lines {
		for i, cell := range line {
			list[i] = max(list[i], utf8.RuneCountInString(cell))
		}
	}
	return list
}

// widthOf returns the width of a table with its gaps.
func widthOf(lines [][]string) (sum int) {
	for _, w := range widths(lines) {
		sum += w + gap
	}
	return sum - gap
}

// shorten replaces the middle of a text with "…" if it has more characters than longest,
// which is at least 1.
func shorten(text string, longest int) string {
	runes := []rune(text)
	if len(runes) <= longest {
		return text
	}
	head := (longest - 1) / 2
	return string(runes[:head]) + "…" + string(runes[len(runes)-(longest-1-head):])
}

// prose returns a writer that breaks long lines between words if w is a terminal. Each
// Write takes whole lines.
func prose(w io.Writer) io.Writer {
	if columns := columnsOf(w); columns > 0 {
		return reflowed{w, columns}
	}
	return w
}

type reflowed struct {
	to      io.Writer
	columns int
}

func (r reflowed) Write(text []byte) (int, error) {
	_, err := io.WriteString(r.to, writers.Reflow(string(text), r.columns))
	return len(text), err
}

// columnsOf returns the width of the terminal that w writes to; 0 if it is none.
func columnsOf(w io.Writer) int {
	switch w := w.(type) {
	case *stdout:
		return columnsOf(w.to)
	case *printable:
		return columnsOf(w.to)
	case reflowed:
		return w.columns
	}
	return writers.Columns(w)
}
