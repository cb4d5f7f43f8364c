package main

import (
	"fmt"
	"os"
	"slices"

	"octet/internal/chart"
	"octet/internal/stats"
	"octet/study/internal/finding"
)

const (
	stays    = "fp8-delayed"
	toBF16   = "fp8-delayed, then bf16"
	toSmooth = "fp8-delayed, then fp8-smooth"
	shortly  = rescueStep + 20 // a step shortly after the change
)

// rescueTable prints losses above those of bf16 at the same step.
func (r results) rescueTable() error {
	steps := []float64{5, rescueStep, rescueStep + 5, shortly, rescueSteps}
	var rows [][]string
	for _, exponent := range rescued {
		for _, v := range rescueVariants[1:] {
			row := []string{fmt.Sprintf("2^%d", exponent), v.name}
			for _, step := range steps {
				row = append(row, finding.Span("%.2f", r.percent(cell{v.name, exponent}, cell{"bf16", exponent}, step)))
			}
			rows = append(rows, row)
		}
		row := []string{fmt.Sprintf("2^%d", exponent), "bf16, nats per byte"}
		for _, step := range steps {
			var losses []float64
			for _, x := range r[cell{"bf16", exponent}] {
				losses = append(losses, lossAt(x, step))
			}
			row = append(row, finding.Span("%.2f", losses))
		}
		rows = append(rows, row)
	}
	return finding.Table(os.Stdout, "Rescue: validation loss, in % above that of bf16 at the same step", []string{"κ", "recipe", "step 5", "60", "65", "80", "120"}, rows)
}

// rescuePredictions compares the runs with what was written here before the first of them, from
// earlier runs of three models.
func (r results) rescuePredictions() *finding.List {
	var l finding.List
	exponent := rescued[0]
	check := func(text, variant string, step, low, high float64) {
		list := r.percent(cell{variant, exponent}, cell{"bf16", exponent}, step)
		l.Check(fmt.Sprintf("κ = 2^%d, step %g: %s, %g to %g %% above bf16 at that step, for every model", exponent, step, text, low, high), finding.Span("%+.2f", list), finding.All(list, low, high))
	}
	check("training with delayed scaling does not repair itself", stays, rescueStep, 10, 60)
	check("it still does not", stays, rescueSteps, 5, 60)
	check("twenty steps after changing to bf16", toBF16, shortly, -2, 2)
	check("twenty steps after changing to fp8-smooth", toSmooth, shortly, -2, 2)
	check("fp8-smooth from the start", "fp8-smooth", rescueSteps, -0.5, 0.5)
	return &l
}

// drawRescue draws the losses over the steps.
func (r results) drawRescue(dir string) error {
	c := chart.Chart{
		Title: fmt.Sprintf("κ = 2^%d: changing the recipe at step %d", rescued[0], rescueStep), X: chart.Axis{Label: "step"},
		Y:     chart.Axis{Label: "validation loss, median and range of 5 models"},
		Marks: []chart.Mark{{X: rescueStep, Text: "the recipe changes"}},
	}
	for i, v := range rescueVariants {
		list := r[cell{v.name, rescued[0]}]
		line := chart.Line{Name: v.name, Look: i, X: list[0].Metrics["val_loss"].Steps}
		for j := range line.X {
			var all []float64
			for _, x := range list {
				all = append(all, x.Metrics["val_loss"].Values[j])
			}
			line.Low, line.High = append(line.Low, slices.Min(all)), append(line.High, slices.Max(all))
			line.Y = append(line.Y, stats.Median(all))
		}
		c.Lines = append(c.Lines, line)
	}
	return finding.Draw(dir, "amplify-rescue", &c)
}
