package main

import (
	"context"
	"fmt"
	"io"
	"math"
	"path/filepath"
	"slices"

	"octet/internal/runs"
	"octet/internal/stats"
	"octet/internal/sweep"
	"octet/study/internal/finding"
)

// control is the recipe that has to fail, so that the measures are known to tell recipes apart.
const control = "fp8-unit"

// measure is one number of a run.
type measure struct {
	name     string
	of       func(*score) float64
	relative bool    // differences are in percent of the baseline, else in the measure's unit
	format   string  // of a value
	allowed  float64 // predicted maximum of a mean difference, in its unit
	orNoise  bool    // or two standard errors
}

var measures = []measure{
	{"validation loss, nats per byte", func(s *score) float64 { return s.ValLoss }, true, "%.4f", 1, false},
	{"continuation, accuracy in %", func(s *score) float64 { return 100 * s.Metrics["continuation acc"] }, false, "%.1f", 2, true},
	{"lastword, accuracy in %", func(s *score) float64 { return 100 * s.Metrics["lastword acc"] }, false, "%.1f", 2, true},
	{"lastword, ln perplexity", func(s *score) float64 { return math.Log(s.Metrics["lastword perplexity"]) }, true, "%.3f", 1, true},
}

// result is that of the runs of a recipe, for one measure.
type result struct {
	values     []float64    // by seed
	difference stats.Paired // from bf16, at equal seeds
}

// quality prints losses and scores of the runs of a sweep.
func quality(ctx context.Context, w io.Writer, dir, tasks string, threads int) error {
	files, sum, err := readTasks(tasks)
	if err != nil {
		return err
	}
	groups, err := sweep.Complete(dir)
	if err != nil {
		return err
	}
	if !slices.ContainsFunc(groups, func(g *runs.Group) bool { return g.Name == control }) || groups[0].Name != "bf16" {
		return fmt.Errorf("%s is not a sweep of study/sweeps/paper.toml: it has no runs of bf16 and %s", dir, control)
	}
	scores := map[string]map[string]*score{} // by recipe and seed
	var recipes []string
	for _, g := range groups {
		recipes = append(recipes, g.Name)
		scores[g.Name] = map[string]*score{}
		for _, r := range g.Runs {
			file := filepath.Join(dir, "scores", g.Name+"-seed-"+r.Seed()+".json")
			if scores[g.Name][r.Seed()], err = scoreOf(ctx, r, file, files, sum, threads); err != nil {
				return err
			}
		}
	}
	var rows [][]string
	all := make([]map[string]result, len(measures))
	for i, m := range measures {
		all[i] = map[string]result{}
		for _, recipe := range recipes {
			r := resultOf(m, scores[recipe], scores["bf16"])
			all[i][recipe] = r
			rows = append(rows, m.row(recipe, r))
		}
	}
	if err := finding.Table(w, "Loss and tasks of small models", []string{"measure", "recipe", "mean", "range", "against `bf16`", "p"}, rows); err != nil {
		return err
	}
	return outcomes(w, recipes, all)
}

func resultOf(m measure, own, base map[string]*score) (r result) {
	var differences []float64
	seeds := []string{}
	for seed := range own {
		seeds = append(seeds, seed)
	}
	slices.Sort(seeds)
	for _, seed := range seeds {
		x := m.of(own[seed])
		r.values = append(r.values, x)
		if base[seed] == nil {
			continue
		}
		b := m.of(base[seed])
		if m.relative {
			differences = append(differences, 100*(x-b)/b)
		} else {
			differences = append(differences, x-b)
		}
	}
	r.difference = stats.PairedOf(differences)
	return r
}

func (m measure) row(recipe string, r result) []string {
	row := []string{m.name, "`" + recipe + "`", fmt.Sprintf(m.format, stats.Mean(r.values)), finding.Span(m.format, r.values)}
	if recipe == "bf16" {
		return append(row, "baseline", "–")
	}
	unit := " %"
	if !m.relative {
		unit = ""
	}
	return append(row, fmt.Sprintf("%+.2f ± %.2f%s", r.difference.Mean, r.difference.StdErr, unit), fmt.Sprintf("%.2g", r.difference.P))
}

// within reports whether a mean difference is as small as predicted.
func (m measure) within(d stats.Paired) bool {
	return math.Abs(d.Mean) <= m.allowed || m.orNoise && math.Abs(d.Mean) <= 2*d.StdErr
}

// outcomes prints the predictions, by measure: of every recipe, of the baseline, of the control.
func outcomes(w io.Writer, recipes []string, all []map[string]result) error {
	var l finding.List
	for i, m := range measures {
		unit, noise := "points", ""
		if m.relative {
			unit = "%"
		}
		if m.orNoise {
			noise = ", or by no more than two standard errors"
		}
		held := true
		var means []float64
		for _, recipe := range recipes {
			if recipe == "bf16" || recipe == control {
				continue
			}
			d := all[i][recipe].difference
			means = append(means, d.Mean)
			held = held && m.within(d)
		}
		l.Check(fmt.Sprintf("%s: every recipe's mean differs from `bf16`'s by at most %g %s%s", m.name, m.allowed, unit, noise), finding.Span("%+.2f", means)+" "+unit, held)
		if i == 0 {
			base := all[i]["bf16"].values
			seeds := 100 * (slices.Max(base) - slices.Min(base)) / stats.Mean(base)
			largest := max(slices.Max(means), -slices.Min(means))
			l.Check("and by less than the seeds of `bf16` differ from each other", fmt.Sprintf("%.2f %% beside %.2f %%", largest, seeds), largest < seeds)
		}
		d := all[i][control].difference
		l.Check(fmt.Sprintf("%s: the control `%s` is outside these bounds", m.name, control), fmt.Sprintf("%+.2f ± %.2f %s", d.Mean, d.StdErr, unit), !m.within(d))
	}
	continuation, words := all[1]["bf16"].values, all[2]["bf16"].values
	l.Check("`bf16` chooses the right one of four continuations for at least 40 %, with every seed", finding.Span("%.1f", continuation)+" %", finding.All(continuation, 40, 100))
	l.Check("`bf16` predicts at least 2 % of the last words, with every seed", finding.Span("%.1f", words)+" %", finding.All(words, 2, 100))
	return l.Write(w)
}
