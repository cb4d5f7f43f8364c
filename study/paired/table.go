package main

import (
	"fmt"
	"math"
	"os"
	"slices"
	"text/tabwriter"

	"gonum.org/v1/plot/plotter"

	"octet/study/internal/figure"
)

// printTable prints validation losses: the mean over seeds, and the mean and range of the
// differences to the first variant at the same seed.
func printTable(variants []variant, results [][]result) error {
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintf(w, "variant\tmean loss\tagainst %s, mean\tfrom\tto\tper seed\n", variants[0].name)
	for i, v := range variants {
		sum, each := 0.0, ""
		var rel []float64
		for seed, r := range results[i] {
			sum += r.Val
			rel = append(rel, 100*(r.Val/results[0][seed].Val-1))
			each += fmt.Sprintf(" %.4f", r.Val)
		}
		fmt.Fprintf(w, "%s\t%.4f\t%+.2f %%\t%+.2f %%\t%+.2f %%\t%s\n",
			v.name, sum/float64(len(rel)), mean(rel), slices.Min(rel), slices.Max(rel), each)
	}
	return w.Flush()
}

func mean(x []float64) (m float64) {
	for _, v := range x {
		m += v / float64(len(x))
	}
	return m
}

// maxBands is the number of variants up to which readers can distinguish bands.
const maxBands = 8

// windowOf returns the number of steps that a point of the plot averages: fewer for a
// short run, so that it has points.
func windowOf(steps int) int { return max(1, min(25, steps/4)) }

// draw plots the difference of each variant's training loss to the first variant's on the
// same batches: the mean over seeds, in a band from the smallest to the largest. It omits
// the bands of many variants, which would hide the lines.
func draw(variants []variant, results [][]result, out string) error {
	steps := len(results[0][0].Train)
	window := windowOf(steps)
	p := figure.New("Training loss on the same batches", "step", "difference to "+variants[0].name+", %")
	p.Legend.Top = true
	top := 0.0 // the largest difference
	for i, v := range variants[1:] {
		var middle, low, high plotter.XYs
		for end := window; end <= steps; end += max(1, window/5) {
			var rel []float64
			for seed, r := range results[i+1] {
				ours, theirs := r.Train[end-window:end], results[0][seed].Train[end-window:end]
				rel = append(rel, 100*(mean(ours)/mean(theirs)-1))
			}
			x := float64(end)
			top = max(top, math.Abs(mean(rel)))
			middle = append(middle, plotter.XY{X: x, Y: mean(rel)})
			low, high = append(low, plotter.XY{X: x, Y: slices.Min(rel)}), append(high, plotter.XY{X: x, Y: slices.Max(rel)})
		}
		if len(variants) <= maxBands {
			slices.Reverse(high)
			band, err := plotter.NewPolygon(append(low, high...))
			if err != nil {
				return err
			}
			band.Color, band.LineStyle.Width = figure.Faint(i), 0
			p.Add(band)
		}
		if err := figure.AddLine(p, i, v.name, middle, false); err != nil {
			return err
		}
	}
	// Runs that diverge leave the axis.
	p.Y.Max = min(2, max(0.1, 1.2*top))
	p.Y.Min = -p.Y.Max
	p.X.Min, p.X.Max = 0, 1.4*float64(steps) // with room for the legend
	return figure.Save(p, out)
}
