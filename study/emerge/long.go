package main

import (
	"errors"
	"fmt"
	"os"
	"slices"

	"octet/internal/chart"
	"octet/internal/runs"
	"octet/internal/stats"
	"octet/internal/sweep"
	"octet/study/internal/finding"
)

// stepTokens is the number of tokens of a step of study/base.toml.
const stepTokens = 512

// around returns the median of a field of a layer over the measurements of the last 15 % before a
// number of tokens.
func around(r *runs.Run, layer, field string, tokens float64) float64 {
	var list []float64
	for i, v := range r.Channels.Field(layer, field) {
		if at := r.Channels.Steps[i] * stepTokens; at > 0.85*tokens && at <= 1.001*tokens {
			list = append(list, v)
		}
	}
	return stats.Median(list)
}

// describeLong prints how the long runs of the sweep in dir developed, and draws them.
func describeLong(dir, figures string) error {
	groups, err := sweep.Complete(dir)
	if err != nil {
		return err
	}
	if len(groups) != 1 {
		return fmt.Errorf("%s has %d variants: it is not a sweep of study/sweeps/long.toml", dir, len(groups))
	}
	list := groups[0].Runs
	layers := list[0].Channels.Names()
	head := []string{"tokens"}
	for _, layer := range layers {
		head = append(head, layer+": mean |cos|", "share above 0.5", "amax", "amax / rms of the others")
	}
	var rows [][]string
	for _, tokens := range []float64{1e6, 2.5e6, 5e6, 10e6, 20e6, 50e6, 100e6} {
		row := []string{fmt.Sprintf("%gM", tokens/1e6)}
		for _, layer := range layers {
			for _, x := range []struct{ field, format string }{{"cosine_mean", "%.2f"}, {"aligned", "%.2f"}, {"amax", "%.1f"}} {
				row = append(row, finding.Span(x.format, allAround(list, layer, x.field, tokens)))
			}
			row = append(row, finding.Span("%.1f", overRMSAround(list, layer, tokens)))
		}
		rows = append(rows, row)
	}
	return errors.Join(finding.Table(os.Stdout, "Runs of 100M tokens", head, rows), longPredictions(list).Write(os.Stdout), drawLong(list, figures))
}

func allAround(list []*runs.Run, layer, field string, tokens float64) (values []float64) {
	for _, r := range list {
		values = append(values, around(r, layer, field, tokens))
	}
	return values
}

func overRMSAround(list []*runs.Run, layer string, tokens float64) (values []float64) {
	amax, others := allAround(list, layer, "amax", tokens), allAround(list, layer, "others_rms", tokens)
	for i := range amax {
		values = append(values, amax[i]/others[i])
	}
	return values
}

// longPredictions compares the runs with what was written here before they started. An earlier run
// of 11M tokens had mean |cos| of .32, .30, .28, .27 and .27 after 5,000 to 22,000 steps.
func longPredictions(list []*runs.Run) *finding.List {
	var l finding.List
	every := func(values []float64, holds func(i int) bool) bool {
		for i := range values {
			if !holds(i) {
				return false
			}
		}
		return true
	}
	early, late := allAround(list, layerZero, "cosine_mean", 5e6), allAround(list, layerZero, "cosine_mean", 100e6)
	l.Check("No late growth of alignment: for every seed, mean |cos| of the first layer at 100M tokens is at most that at 5M plus 0.02",
		finding.Span("%.3f", early)+" at 5M, "+finding.Span("%.3f", late)+" at 100M", every(late, func(i int) bool { return late[i] <= early[i]+0.02 }))
	before, after := allAround(list, layerZero, "amax", 10e6), allAround(list, layerZero, "amax", 100e6)
	l.Check("No late growth of activations: for every seed, amax of the first layer at 100M tokens is at most twice that at 10M",
		finding.Span("%.1f", before)+" at 10M, "+finding.Span("%.1f", after)+" at 100M", every(after, func(i int) bool { return after[i] <= 2*before[i] }))
	var largest []float64
	for _, r := range list {
		largest = append(largest, finding.LargestOverRMS(r))
	}
	l.Check("No channel leaves the others: the largest amax stays below 10 times the rms of the others, in every layer at every measurement",
		"at most "+finding.Span("%.1f", largest), finding.All(largest, 0, 10))
	return &l
}

// blockSteps is the number of steps of a point of the figure.
const blockSteps = 2500

// line returns the values of a layer, those of a block of steps as one point.
func line(name string, look int, steps, values []float64, reduce func([]float64) float64) chart.Line {
	l := chart.Line{Name: name, Look: look}
	for from, to := 0, 0; from < len(steps); from = to {
		for to < len(steps) && steps[to] < steps[from]+blockSteps {
			to++
		}
		l.X, l.Y = append(l.X, steps[to-1]*stepTokens/1e6), append(l.Y, reduce(values[from:to]))
	}
	return l
}

// drawLong draws alignment, the mean of a block of steps, and the size of the largest channel, the
// largest of a block, over the tokens.
func drawLong(list []*runs.Run, dir string) error {
	x := chart.Axis{Label: "tokens, millions"}
	alignment := chart.Chart{Title: "100M tokens: mean |cos| of w1 and w2", X: x, Y: chart.Axis{Label: "mean |cos|, 5 seeds", Min: 0, Max: 0.5}}
	size := chart.Chart{Title: "Largest channel", X: x, Y: chart.Axis{Label: "largest amax / rms of the others", Min: 0, Max: 12}}
	for _, r := range list {
		for i, layer := range r.Channels.Names() {
			alignment.Lines = append(alignment.Lines, line(layer, i, r.Channels.Steps, r.Channels.Field(layer, "cosine_mean"), stats.Mean))
			size.Lines = append(size.Lines, line(layer, i, r.Channels.Steps, finding.OverRMS(r, layer), slices.Max[[]float64]))
		}
	}
	return finding.Draw(dir, "emerge-long", &alignment, &size)
}
