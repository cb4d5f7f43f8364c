// Command spike measures the error that an outlier channel of SwiGLU causes in the GEMMs
// of w3: with plain scaling, with every form of Smooth-SwiGLU, and with parts of it
// delayed by a step. It prints a table as CSV and draws a plot.
//
//	go run ./study/spike -o spike.png                  # error against size
//	go run ./study/spike -recurring -o recurring.png   # one batch in twenty, step by step
//
// The plot shows the largest error of the three GEMMs, with and without the outlier's
// part; see package internal/spike.
package main

import (
	"context"
	"encoding/csv"
	"flag"
	"fmt"
	"log"
	"math"
	"os"
	"strconv"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"

	"octet/internal/spike"
	"octet/recipe"
	"octet/study/internal/figure"
)

func main() {
	log.SetFlags(0)
	out := flag.String("o", "", "file to draw: .png, .svg or .pdf; empty draws nothing")
	recurring := flag.Bool("recurring", false, "spike in one batch of twenty, and show every step")
	seed := flag.Uint64("seed", 1, "seed of the data")
	flag.Parse()
	problem := spike.NewProblem(512, 128, 352, *seed)
	run := bySize
	if *recurring {
		run = byStep
	}
	if err := run(context.Background(), problem, *out); err != nil {
		log.Fatal(err)
	}
}

var columns = []string{"fprop", "fprop_others", "dgrad", "dgrad_others", "wgrad", "wgrad_others", "saturated"}

// table writes CSV rows: the variant, the size or step, the errors.
type table struct{ *csv.Writer }

func newTable(at string) (table, error) {
	t := table{csv.NewWriter(os.Stdout)}
	return t, t.Write(append([]string{"variant", at}, columns...))
}

func (t table) row(variant string, at float64, e spike.Errors) error {
	row := []string{variant, strconv.FormatFloat(at, 'g', -1, 64)}
	for _, x := range []float64{e.Fprop, e.FpropOthers, e.Dgrad, e.DgradOthers, e.Wgrad, e.WgradOthers, e.Saturated} {
		row = append(row, fmt.Sprintf("%.4g", x))
	}
	return t.Write(row)
}

func (t table) end() error {
	t.Flush()
	return t.Error()
}

// bySize measures one spike of every size after spike-free steps.
func bySize(ctx context.Context, problem *spike.Problem, out string) error {
	sizes := []float64{1, 10, 100, 1e3, 3e3, 1e4, 3e4, 1e5, 3e5, 1e6, 3e6, 1e7, 1e8}
	t, err := newTable("size")
	if err != nil {
		return err
	}
	p := newPlot("One spike, after steps without", "size of the spike, times the largest other activation")
	p.X.Tick.Marker = powers{}
	p.Legend.YOffs = vg.Points(66)
	for i, v := range spike.Variants() {
		list, err := spike.Sweep(ctx, problem, v.Recipe, sizes...)
		if err != nil {
			return err
		}
		var points plotter.XYs
		for j, e := range list {
			if err := t.row(v.Name, sizes[j], e); err != nil {
				return err
			}
			points = append(points, plotter.XY{X: math.Log10(sizes[j]), Y: e.Worst()})
		}
		if v.Recipe.Kind == recipe.Failing { // in the table alone: the curves would hide each other
			continue
		}
		if err := figure.AddLine(p, i, v.Name, points, v.Late); err != nil {
			return err
		}
	}
	return save(p, t, out)
}

// byStep measures every step of a run in which one batch in twenty spikes.
func byStep(ctx context.Context, problem *spike.Problem, out string) error {
	const size, period, steps = 1e5, 20, 70
	t, err := newTable("step")
	if err != nil {
		return err
	}
	p := newPlot(fmt.Sprintf("A spike of %s in one batch of %d", power(int(math.Round(math.Log10(size)))), period), "step")
	p.Legend.Left, p.Legend.Top, p.Legend.YOffs = true, true, -vg.Points(22)
	for i, v := range spike.Histories() {
		list, err := spike.Recur(ctx, problem, v.Recipe, size, period, steps)
		if err != nil {
			return err
		}
		var points plotter.XYs
		for j, e := range list {
			if err := t.row(v.Name, float64(j+1), e); err != nil {
				return err
			}
			points = append(points, plotter.XY{X: float64(j + 1), Y: e.Worst()})
		}
		if err := figure.AddLine(p, i, v.Name, points, v.Late); err != nil {
			return err
		}
	}
	return save(p, t, out)
}

// powers labels logarithms with the powers of ten that they stand for.
type powers struct{}

func (powers) Ticks(low, high float64) (ticks []plot.Tick) {
	for x := math.Ceil(low); x <= high; x++ {
		ticks = append(ticks, plot.Tick{Value: x, Label: power(int(x))})
	}
	return ticks
}

// power formats 10^n, for n of 0 or more.
func power(n int) string {
	if n < 2 { // no axis begins below 1
		return strconv.Itoa(1 + 9*n)
	}
	digits := []rune("⁰¹²³⁴⁵⁶⁷⁸⁹")
	label := "10"
	for _, d := range strconv.Itoa(n) {
		label += string(digits[d-'0'])
	}
	return label
}

// newPlot returns an empty plot of relative errors.
func newPlot(title, x string) *plot.Plot {
	p := figure.New(title, x, "worst relative error of w3's GEMMs")
	p.Y.Min, p.Y.Max = 0, 1.05
	return p
}

func save(p *plot.Plot, t table, out string) error {
	if err := t.end(); err != nil || out == "" {
		return err
	}
	return figure.Save(p, out)
}
