package cli

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"octet/internal/chart"
	"octet/internal/runs"
	"octet/internal/writers"
	"octet/train"
)

// The size of the picture of a run in a terminal, in characters, and that of the largest
// metrics.jsonl that is read for it, in bytes: a picture must not delay the end of a run.
const (
	pictureColumns, pictureRows = 78, 8
	pictureMetrics              = 64 << 20
)

// printPicture draws the training loss of a run, and the largest saturated share among its
// casts, if w is a terminal and the run has several steps.
func printPicture(w io.Writer, dir string) error {
	columns := min(columnsOf(w), pictureColumns)
	info, err := os.Stat(filepath.Join(dir, writers.MetricsFile))
	if columns == 0 || err != nil || info.Size() > pictureMetrics {
		return nil
	}
	r, err := runs.Open(dir)
	if err != nil { // the folder was moved
		return nil
	}
	loss := r.Metrics["loss"]
	if loss == nil || len(loss.Steps) < 2 {
		return nil
	}
	unit := "token"
	if r.Config["train.objective"] == train.ObjectiveDPO {
		unit = "pair"
	}
	c := chart.Chart{Title: "training loss, nats per " + unit, X: chart.Axis{Label: "step"}, Lines: []chart.Line{{X: loss.Steps, Y: loss.Values}}}
	if err := c.WriteText(w, columns, pictureRows, asciiTerminal()); err != nil {
		return err
	}
	if len(r.Problems) > 0 {
		fmt.Fprintf(prose(w), "damaged   %s\n", r.Problems[0])
	}
	name, highest, shares := saturation(&r.Casts)
	if len(shares) < 2 {
		return nil
	}
	if highest == 0 {
		_, err = fmt.Fprintf(w, "saturated nothing, in %d measured steps\n", len(shares))
		return err
	}
	_, err = fmt.Fprintf(prose(w), "saturated %s up to %s, %s\n", chart.Sparkline(shares, max(8, columns-40), asciiTerminal()), smallShare(highest), name)
	return err
}

// saturation returns the largest saturated share of all casts on each measured step, and the
// name of the cast with the largest one.
func saturation(m *runs.Measurements) (name string, highest float64, shares []float64) {
	shares = make([]float64, len(m.Steps))
	for _, cast := range m.Names() {
		for i, v := range m.Field(cast, "saturated") {
			if v > shares[i] {
				shares[i] = v
			}
			if v > highest {
				name, highest = cast, v
			}
		}
	}
	return name, highest, shares
}

// asciiTerminal reports whether the locale has no UTF-8.
func asciiTerminal() bool {
	for _, name := range []string{"LC_ALL", "LC_CTYPE", "LANG"} {
		if value := os.Getenv(name); value != "" {
			value = strings.ToUpper(value)
			return !strings.Contains(value, "UTF-8") && !strings.Contains(value, "UTF8")
		}
	}
	return true
}
