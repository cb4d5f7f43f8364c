// Command adam tells what the formats of Adam's moments, and the matrices that have them, do to a
// run and to its updates. It reads the runs of study/sweeps/adam.toml.
//
//	octet sweep study/sweeps/adam.toml -o sweeps/adam
//	go run ./study/adam -runs sweeps/adam
package main

import (
	"errors"
	"flag"
	"fmt"
	"log"
	"math"
	"os"

	"octet/internal/chart"
	"octet/internal/runs"
	"octet/internal/stats"
	"octet/study/internal/finding"
)

// conditions are those of the sweep; the first one has the predictions.
var conditions = []string{"lr 5e-3, no clip", "lr 1e-2, clip 1"}

func main() {
	log.SetFlags(0)
	dir := flag.String("runs", "sweeps/adam", "folder of the sweep to describe")
	out := flag.String("o", "docs/evidence", "folder of the figures")
	flag.Parse()
	if err := describe(*dir, *out); err != nil {
		log.Fatal(err)
	}
}

// states are the variants of the sweep; the first one is FP32.
var states = []string{
	"fp32", "e4m3 e5m2, all", "e4m3 e4m3, all", "e4m3 e4m3, layers", "e4m3 e4m3, layers and head", "e4m3 e4m3, layers and embedding",
	"e5m2 e4m3, all", "fp32 e4m3, all", "e4m3 e4m3, all, stochastic", "e4m3 e4m3, all, floor_v", "e4m3 e4m3, all, blocks",
	"e4m3 e4m3, all, expanded", "e4m3 e5m2, all, as fp8-smooth",
}

// results are the runs of the sweep by variant, in the order of their seeds.
type results map[string][]*runs.Run

func describe(dir, figures string) error {
	var names []string
	for _, state := range states {
		for _, condition := range conditions {
			names = append(names, state+" "+condition)
		}
	}
	byName, err := finding.Sweep(dir, "study/sweeps/adam.toml", names...)
	if err != nil {
		return err
	}
	r := results(byName)
	for _, condition := range conditions {
		if err := r.table(condition); err != nil {
			return err
		}
	}
	return errors.Join(r.predictions().Write(os.Stdout), r.draw(figures))
}

func (r results) of(state, condition string) []*runs.Run { return r[state+" "+condition] }

// uniform is the loss of a model of bytes that knows nothing.
var uniform = math.Log(256)

// diverged reports whether a run's training loss exceeded that of a model that knows nothing by 0.5
// after step 20, or was not finite.
func diverged(x *runs.Run) bool {
	for i, v := range x.Metrics["loss"].Values {
		if math.IsNaN(v) || x.Metrics["loss"].Steps[i] > 20 && v > uniform+0.5 {
			return true
		}
	}
	return false
}

func divergedOf(list []*runs.Run) (n int) {
	for _, x := range list {
		if diverged(x) {
			n++
		}
	}
	return n
}

// largest returns the largest value of a field of each run's updates. A value that is not finite is
// the largest. A skipped step has none.
func largest(list []*runs.Run, field string) (values []float64) {
	for _, x := range list {
		most := math.Inf(-1)
		for _, v := range x.Metrics["update."+field].All() {
			if v > most || math.IsNaN(v) {
				most = v
			}
		}
		values = append(values, most)
	}
	return values
}

// table prints the states under a condition.
func (r results) table(condition string) error {
	var rows [][]string
	base := finding.ValLosses(r.of(states[0], condition))
	for _, state := range states {
		list := r.of(state, condition)
		worse := finding.Above(finding.ValLosses(list), base)
		rows = append(rows, []string{
			state, finding.Span("%.3f", finding.ValLosses(list)), finding.Span("%+.1f", worse), fmt.Sprintf("%d of %d", divergedOf(list), len(list)),
			finding.Span("%.3g", largest(list, "largest")), finding.Span("%.3f", largest(list, "zero_v")),
		})
	}
	return finding.Table(os.Stdout, "Adam's moments, "+condition, []string{"m, v, matrices", "validation loss", "against FP32, %", "diverged", "largest update / lr", "most v = 0 with m ≠ 0, share of a tensor"}, rows)
}

// draw draws the training loss of every run over the steps. A line ends where the loss is not
// finite, or leaves the chart.
func (r results) draw(dir string) error {
	c := chart.Chart{
		Title: "Adam's moments, " + conditions[0], X: chart.Axis{Label: "step"},
		Y: chart.Axis{Label: "training loss, 5 seeds", Min: 2, Max: 9},
	}
	for i, state := range []string{"fp32", "e4m3 e5m2, all", "e4m3 e4m3, all, floor_v", "e4m3 e4m3, layers", "e4m3 e4m3, layers and head", "e4m3 e4m3, all"} {
		for _, x := range r.of(state, conditions[0]) {
			line := chart.Line{Name: state, Look: i}
			loss := x.Metrics["loss"]
			const every = 10 // steps of a point
			for from := 0; from+every <= len(loss.Steps); from += every {
				line.X, line.Y = append(line.X, loss.Steps[from]+every/2), append(line.Y, stats.Mean(loss.Values[from:from+every]))
			}
			c.Lines = append(c.Lines, line)
		}
	}
	return finding.Draw(dir, "adam", &c)
}
