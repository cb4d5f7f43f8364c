// Package finding holds the predictions of a study beside what its runs measured, and writes
// both as Markdown for docs/evidence.md. A study states its predictions in code and
// commits them before its runs at full size; docs/evidence.md names the exceptions.
package finding

import (
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"octet/internal/chart"
)

// List holds the predictions of a study.
type List struct{ rows [][]string }

// Check adds a prediction, with what was measured and whether the prediction held. The
// prediction names the numbers that decide: any other outcome refutes it.
func (l *List) Check(prediction, measured string, held bool) {
	outcome := "**refuted**"
	if held {
		outcome = "held"
	}
	l.rows = append(l.rows, []string{prediction, measured, outcome})
}

// Write writes the predictions as a table.
func (l *List) Write(w io.Writer) error {
	return Table(w, "Predictions", []string{"prediction", "measured", "outcome"}, l.rows)
}

// Table writes a heading and a table in Markdown, followed by an empty line. Cells may contain bars.
func Table(w io.Writer, title string, head []string, rows [][]string) error {
	var b strings.Builder
	fmt.Fprintf(&b, "### %s\n\n", title)
	line := func(cells []string) {
		for _, c := range cells {
			fmt.Fprintf(&b, "| %s ", strings.ReplaceAll(c, "|", "\\|"))
		}
		b.WriteString("|\n")
	}
	line(head)
	b.WriteString(strings.Repeat("|---", len(head)) + "|\n")
	for _, r := range rows {
		line(r)
	}
	_, err := fmt.Fprintln(w, b.String())
	return err
}

// Span returns the smallest and the largest value, "0.54–0.57", each in this format of package
// fmt; "–" for no values. A value that is not finite is "NaN" and the largest.
func Span(format string, values []float64) string {
	if len(values) == 0 {
		return "–"
	}
	text := func(v float64) string {
		if math.IsNaN(v) || math.IsInf(v, 0) {
			return "NaN"
		}
		return fmt.Sprintf(format, v)
	}
	finite := slices.DeleteFunc(slices.Clone(values), func(v float64) bool { return math.IsNaN(v) || math.IsInf(v, 0) })
	if len(finite) == 0 {
		return "NaN"
	}
	low, high := text(slices.Min(finite)), text(slices.Max(finite))
	if len(finite) < len(values) {
		high = "NaN"
	}
	if low == high {
		return low
	}
	return low + "–" + high
}

// All reports whether every value is within [low, high]; a NaN is not.
func All(values []float64, low, high float64) bool {
	for _, v := range values {
		if !(v >= low && v <= high) {
			return false
		}
	}
	return len(values) > 0
}

// Draw writes pictures, each below the one before, to the file name.svg in dir.
func Draw(dir, name string, pictures ...chart.Picture) error {
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, name+".svg"), chart.File(pictures...), 0o666)
}
