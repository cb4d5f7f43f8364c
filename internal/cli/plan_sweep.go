package cli

import (
	"fmt"
	"io"
	"math"
	"runtime"
	"slices"

	"golang.org/x/sync/errgroup"

	"octet/backend/cost"
	"octet/internal/chart"
	"octet/internal/disk"
	"octet/internal/writers"
	"octet/train"
)

// sweepPoint is a cluster of a sweep. Without enough memory it has no times.
type sweepPoint struct {
	Devices       int     `json:"devices"`
	Fits          bool    `json:"fits"`
	Need          int64   `json:"memory_needed_bytes"`
	TokensPerStep int64   `json:"tokens_per_step"`
	StepSeconds   float64 `json:"step_s,omitempty"`
	TokensPerS    float64 `json:"tokens_per_s,omitempty"`
	Linear        float64 `json:"of_linear,omitempty"` // tokens/s of a device over that of the smallest cluster that fits
	Days          float64 `json:"days,omitempty"`
	Cost          float64 `json:"cost,omitempty"`
	Lost          float64 `json:"lost_to_failures,omitempty"`
}

// sweepAtOnce bounds the programs in memory: the largest models have 200 MB of them.
const sweepAtOnce = 4

// sweep predicts clusters of several sizes, whose devices all have the tokens of the
// configuration.
func (p *predictor) sweep(cfg train.Config, cluster cost.Cluster) ([]sweepPoint, error) {
	sizes := p.run.sweepSizes(cluster.PerNode)
	list := make([]sweepPoint, len(sizes))
	var group errgroup.Group
	group.SetLimit(min(sweepAtOnce, runtime.GOMAXPROCS(0)))
	for i, n := range sizes {
		c, err := cluster.Of(n)
		if err != nil {
			return nil, fmt.Errorf("--sweep: %w: end it at %d or %d", err, n/c.PerNode*c.PerNode, (n/c.PerNode+1)*c.PerNode)
		}
		group.Go(func() (err error) {
			list[i], err = p.sweepPoint(cfg, c)
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	if i := slices.IndexFunc(list, func(s sweepPoint) bool { return s.Fits }); i >= 0 {
		each := list[i].TokensPerS / float64(list[i].Devices)
		for j := range list {
			list[j].Linear = list[j].TokensPerS / float64(list[j].Devices) / each
		}
	}
	return list, nil
}

func (p *predictor) sweepPoint(cfg train.Config, c cost.Cluster) (s sweepPoint, err error) {
	m, err := p.machine(c)
	if err != nil {
		return s, err
	}
	capacity, err := capacityOf(m)
	if err != nil {
		return s, err
	}
	x, err := p.planOn(cfg, c)
	if err != nil {
		return s, err
	}
	s = sweepPoint{Devices: c.Devices(), Fits: x.need <= capacity, Need: x.need, TokensPerStep: x.job.TokensPerStep()}
	if !s.Fits {
		return s, nil
	}
	f, err := p.forecast(m, x)
	s.StepSeconds, s.TokensPerS, s.Days, s.Cost, s.Lost = f.StepSeconds, f.TokensPerS, f.Days, f.Cost, f.Lost
	return s, err
}

// printSweep prints a table of the sweep.
func (r *predicted) printSweep(w io.Writer) error {
	heads := []string{"devices", "tokens/s", "of linear", "step", "batch", "memory"}
	timed, priced := r.Prediction.Days > 0, r.Prediction.Cost > 0
	if timed {
		heads = append(heads, "whole run")
	}
	if priced {
		heads = append(heads, "cost")
	}
	var t table
	for _, head := range heads {
		t.columns = append(t.columns, column{head: head})
	}
	for _, s := range r.Prediction.Sweep {
		speed, linear, step, run, price := "too large", unknown, unknown, unknown, unknown
		if s.Fits {
			speed, linear, step = writers.Count(int64(s.TokensPerS)), percentage(s.Linear), duration(s.StepSeconds)
			run, price = duration(s.Days*86400), writers.Count(int64(math.Round(s.Cost)))
		}
		cells := []string{writers.Count(int64(s.Devices)), speed, linear, step, writers.Count(s.TokensPerStep), writers.Bytes(s.Need)}
		if timed {
			cells = append(cells, run)
		}
		if priced {
			cells = append(cells, price)
		}
		t.add(cells...)
	}
	fmt.Fprintf(w, "\npredicted for %s; the batch grows with the devices\n\n", r.Recipe)
	return t.print(w)
}

// writePlot draws the time by class of all recipes, and their speeds in a sweep.
func writePlot(path string, list []*predicted) error {
	pictures := []chart.Picture{barsOf(list)}
	if speed := speedOf(list); speed != nil {
		pictures = []chart.Picture{speed, pictures[0]}
	}
	return badInput(disk.WriteAtomic(path, chart.File(pictures...)))
}

// barsOf draws the time of a step by class, for each recipe.
func barsOf(list []*predicted) *chart.Bars {
	bars := &chart.Bars{Title: "Predicted time of a step", X: chart.Axis{Label: "ms"}, Parts: classNames(list)}
	for _, r := range list {
		var millis []float64
		for _, name := range bars.Parts {
			millis = append(millis, 1e3*r.classOf(name).Seconds)
		}
		bars.Rows, bars.Data = append(bars.Rows, r.Recipe), append(bars.Data, millis)
	}
	return bars
}

// speedOf draws the speed of each recipe on the clusters of a sweep, beside a linear one; nil
// without a cluster that fits.
func speedOf(list []*predicted) *chart.Chart {
	c := &chart.Chart{
		Title: "Predicted speed", X: chart.Axis{Label: "devices, " + list[0].Prediction.Title, Log: true}, Y: chart.Axis{Label: "tokens/s", Log: true},
	}
	some := false
	for i, r := range list {
		line, linear := chart.Line{Name: r.Recipe, Look: i}, chart.Line{Look: i + chart.Colors}
		if i == 0 {
			linear.Name = "linear"
		}
		for _, s := range r.Prediction.Sweep {
			if s.Fits {
				line.X, line.Y = append(line.X, float64(s.Devices)), append(line.Y, s.TokensPerS)
				linear.X, linear.Y = append(linear.X, float64(s.Devices)), append(linear.Y, s.TokensPerS/s.Linear)
				some = true
			}
		}
		c.Lines = append(c.Lines, linear, line)
	}
	if !some {
		return nil
	}
	return c
}
