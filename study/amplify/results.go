package main

import (
	"math"
	"slices"
	"strings"

	"octet/internal/runs"
	"octet/internal/sweep"
)

// cell names the runs of a recipe on the models of one κ.
type cell struct {
	recipe   string // or the name of a variant of the rescue
	exponent int
}

// results are the runs of a sweep, one for each model, in the order of the seeds.
type results map[cell][]*runs.Run

// readResults reads the runs of a sweep.
func readResults(dir string) (results, error) {
	groups, err := sweep.Complete(dir)
	if err != nil {
		return nil, err
	}
	r := results{}
	for _, g := range groups {
		for _, x := range g.Runs {
			exponent, err := exponentOf(x.Config["model.init"])
			if err != nil {
				return nil, err
			}
			name, _, _ := strings.Cut(g.Name, " 2^")
			c := cell{name, exponent}
			r[c] = append(r[c], x)
		}
	}
	for _, list := range r {
		slices.SortFunc(list, func(a, b *runs.Run) int { return strings.Compare(a.Config["seed"], b.Config["seed"]) })
	}
	return r, nil
}

// above returns the last validation losses of a cell, in percent above those of bf16 on the models
// that are not amplified.
func (r results) above(recipe string, exponent int) []float64 {
	return r.percent(cell{recipe, exponent}, cell{"bf16", 0}, -1)
}

// percent returns the validation losses of a cell in percent above those of another on the models of
// the same seeds, at a step; at the last step for -1.
func (r results) percent(of, base cell, step float64) (list []float64) {
	for i, x := range r[of] {
		list = append(list, 100*(lossAt(x, step)/lossAt(r[base][i], step)-1))
	}
	return list
}

// lossAt returns the validation loss of a run at a step, at the last one for -1; NaN if it has none.
func lossAt(r *runs.Run, step float64) float64 {
	s := r.Metrics["val_loss"]
	if s == nil {
		return math.NaN()
	}
	if step < 0 {
		step = s.Steps[len(s.Steps)-1]
	}
	if i := slices.Index(s.Steps, step); i >= 0 {
		return s.Values[i]
	}
	return math.NaN()
}

// channel returns the last value of a field of the first layer's channels, for each run of a cell.
func (r results) channel(c cell, field string) (list []float64) {
	for _, x := range r[c] {
		list = append(list, lastOf(x.Channels.Field("layers.0", field)))
	}
	return list
}

// amaxOver returns the last amax of the first layer over a field of its channels, for each run of a cell.
func (r results) amaxOver(c cell, field string) []float64 {
	list := r.channel(c, "amax")
	for i, v := range r.channel(c, field) {
		list[i] /= v
	}
	return list
}

// cast returns the last value of a field of the cast of the first layer's activation a.
func (r results) cast(c cell, field string) (list []float64) {
	for _, x := range r[c] {
		list = append(list, lastOf(x.Casts.Field("layers.0.mlp.hidden.e4m3", field)))
	}
	return list
}

func lastOf(values []float64) float64 { return values[len(values)-1] }
