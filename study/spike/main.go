// Command spike measures the error that an outlier channel of SwiGLU causes in the GEMMs
// of w3: with plain scaling, with every form of Smooth-SwiGLU, and with parts of it
// delayed by a step. It prints a table as CSV and draws a plot.
//
//	go run ./study/spike -o spike.svg                  # error against size
//	go run ./study/spike -recurring -o recurring.svg   # one batch in twenty, step by step
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
	"os"
	"strconv"

	"octet/internal/chart"
	"octet/internal/spike"
	"octet/recipe"
)

func main() {
	log.SetFlags(0)
	out := flag.String("o", "", "SVG file to draw; empty draws nothing")
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

// bySize measures one spike of every size after spike-free steps.
func bySize(ctx context.Context, problem *spike.Problem, out string) error {
	sizes := []float64{1, 10, 100, 1e3, 3e3, 1e4, 3e4, 1e5, 3e5, 1e6, 3e6, 1e7, 1e8}
	r := results{at: sizes}
	r.picture.Title = "One spike, after steps without"
	r.picture.X = chart.Axis{Label: "size of the spike, times the largest other activation", Log: true}
	for _, v := range spike.Variants() {
		list, err := spike.Sweep(ctx, problem, v.Recipe, sizes...)
		if err != nil {
			return err
		}
		r.tabulate(v, list)
		if v.Recipe.Kind != recipe.Failing { // curves of these would hide each other
			r.draw(v, list)
		}
	}
	return r.write("size", out)
}

// byStep measures every step of a run in which one batch in twenty spikes.
func byStep(ctx context.Context, problem *spike.Problem, out string) error {
	const size, period, steps = 1e5, 20, 70
	var r results
	r.picture.Title = fmt.Sprintf("A spike of %s in one batch of %d", chart.Number(size), period)
	r.picture.X.Label = "step"
	for step := range steps {
		r.at = append(r.at, float64(step+1))
	}
	for _, v := range spike.Histories() {
		list, err := spike.Recur(ctx, problem, v.Recipe, size, period, steps)
		if err != nil {
			return err
		}
		r.tabulate(v, list)
		r.draw(v, list)
	}
	return r.write("step", out)
}

// results are errors of variants at sizes or steps: a row for each, and a line for each
// variant that is drawn.
type results struct {
	at      []float64
	rows    [][]string
	picture chart.Chart
}

func (r *results) tabulate(v spike.Variant, list []spike.Errors) {
	for i, e := range list {
		row := []string{v.Name, strconv.FormatFloat(r.at[i], 'g', -1, 64)}
		for _, x := range []float64{e.Fprop, e.FpropOthers, e.Dgrad, e.DgradOthers, e.Wgrad, e.WgradOthers, e.Saturated} {
			row = append(row, fmt.Sprintf("%.4g", x))
		}
		r.rows = append(r.rows, row)
	}
}

// draw adds the line of a variant, with dashes if the variant delays a scale.
func (r *results) draw(v spike.Variant, list []spike.Errors) {
	l := chart.Line{Name: v.Name, X: r.at, Look: len(r.picture.Lines)}
	if v.Late {
		l.Look += chart.Colors
	}
	for _, e := range list {
		l.Y = append(l.Y, e.Worst())
	}
	r.picture.Lines = append(r.picture.Lines, l)
}

// write prints the table, whose second column is at, and draws the picture.
func (r *results) write(at, out string) error {
	w := csv.NewWriter(os.Stdout)
	columns := []string{"variant", at, "fprop", "fprop_others", "dgrad", "dgrad_others", "wgrad", "wgrad_others", "saturated"}
	if err := w.WriteAll(append([][]string{columns}, r.rows...)); err != nil || out == "" {
		return err
	}
	r.picture.Y = chart.Axis{Label: "worst relative error of w3's GEMMs", Max: 1.05}
	return os.WriteFile(out, chart.File(&r.picture), 0o644)
}
