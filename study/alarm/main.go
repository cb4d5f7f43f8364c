// Command alarm tells when the telemetry of runs saw an outlier channel that few batches excite. It
// reads the runs of study/sweeps/sporadic.toml.
//
//	go run ./study/aligned -write planted
//	octet sweep study/sweeps/sporadic.toml -o sweeps/sporadic
//	go run ./study/alarm -runs sweeps/sporadic
package main

import (
	"errors"
	"flag"
	"fmt"
	"log"
	"math"
	"os"
	"strings"

	"octet/internal/runs"
	"octet/internal/stats"
	"octet/internal/sweep"
	"octet/study/internal/finding"
)

func main() {
	log.SetFlags(0)
	dir := flag.String("runs", "sweeps/sporadic", "folder of the sweep to describe")
	flag.Parse()
	if err := describe(*dir); err != nil {
		log.Fatal(err)
	}
}

// describe prints, for each variant, when its runs warned and what their measurements said.
func describe(dir string) error {
	groups, err := sweep.Groups(dir)
	if err != nil {
		return err
	}
	var rows [][]string
	byName := map[string][]*runs.Run{}
	for _, g := range groups {
		for _, r := range g.Runs {
			if !r.Done() {
				return fmt.Errorf("%s is not done: finish the sweep", r.Dir)
			}
		}
		byName[g.Name] = g.Runs
		var first, ratio, kurtosis, sqnr []float64
		for _, r := range g.Runs {
			if step := firstAlarm(r); step > 0 {
				first = append(first, float64(step))
			}
			ratio = append(ratio, largestRatio(r))
			low, high := spikedCast(r)
			kurtosis, sqnr = append(kurtosis, high), append(sqnr, low)
		}
		rows = append(rows, []string{
			g.Name, fmt.Sprintf("%d of %d", len(first), len(g.Runs)), finding.Span("%.0f", first), finding.Span("%.3g", ratio),
			finding.Span("%.0f", known(kurtosis)), finding.Span("%.1f", known(sqnr)), finding.Span("%.3f", trained(g.Runs)), finding.Span("%.3f", lossOf(g.Runs)),
		})
	}
	var l finding.List
	predict(&l, byName)
	return errors.Join(finding.Table(os.Stdout, "An outlier in one batch of twenty", []string{
		"runs", "with an alarm", "first at step", "largest amax / rms of the others", "largest kurtosis of a", "lowest SQNR of a, dB", "training loss, last 40 steps", "validation loss",
	}, rows), l.Write(os.Stdout))
}

// firstAlarm returns the step of the first warning of an outlier channel; 0 without one.
func firstAlarm(r *runs.Run) int {
	for _, a := range r.Alarms {
		if strings.Contains(a.Message, "swiglu") {
			return a.Step
		}
	}
	return 0
}

// spikes returns the steps whose measured batch has outlier tokens: a channel exceeds the others a
// hundred thousand times. Without them it does so ten thousand times.
func spikes(r *runs.Run) (steps []float64) {
	for i, step := range r.Channels.Steps {
		for _, layer := range r.Channels.Names() {
			if r.Channels.Field(layer, "amax")[i] > 1e5*r.Channels.Field(layer, "others_rms")[i] {
				steps = append(steps, step)
				break
			}
		}
	}
	return steps
}

func largestRatio(r *runs.Run) (most float64) {
	for _, layer := range r.Channels.Names() {
		others := r.Channels.Field(layer, "others_rms")
		for i, a := range r.Channels.Field(layer, "amax") {
			most = max(most, a/others[i])
		}
	}
	return most
}

// spikedCast returns the lowest signal-to-noise ratio and the largest kurtosis of the casts of a over
// the layers and measurements; NaN without such casts.
func spikedCast(r *runs.Run) (sqnr, kurtosis float64) {
	sqnr, kurtosis = math.NaN(), math.NaN()
	for _, name := range r.Casts.Names() {
		if !strings.HasSuffix(name, "mlp.hidden.e4m3") {
			continue
		}
		for _, v := range r.Casts.Field(name, "sqnr_db") {
			if !(v >= sqnr) && !math.IsNaN(v) {
				sqnr = v
			}
		}
		for _, v := range r.Casts.Field(name, "kurtosis") {
			if !(v <= kurtosis) && !math.IsNaN(v) {
				kurtosis = v
			}
		}
	}
	return sqnr, kurtosis
}

func known(values []float64) (list []float64) {
	for _, v := range values {
		if !math.IsNaN(v) {
			list = append(list, v)
		}
	}
	return list
}

// trained returns the mean training loss of the last 40 steps of each run.
func trained(list []*runs.Run) (losses []float64) {
	for _, r := range list {
		all := r.Metrics["loss"].Values
		losses = append(losses, stats.Mean(all[len(all)-40:]))
	}
	return losses
}

// lossOf returns the last validation loss of each run. It is computed with the per-tensor scales of
// the last 16 updates.
func lossOf(list []*runs.Run) (losses []float64) {
	for _, r := range list {
		loss, _ := r.Metrics["val_loss"].Last()
		losses = append(losses, loss)
	}
	return losses
}

// predict compares the runs with what was written here before the first of them.
func predict(l *finding.List, byName map[string][]*runs.Run) {
	for _, recipe := range []string{"bf16", "fp8-delayed", "fp8-current", "fp8-smooth"} {
		list, together := byName[recipe+" health_every=1"], 0
		var delays []float64
		for _, r := range list {
			if s := spikes(r); len(s) > 0 && firstAlarm(r) > 0 {
				delays = append(delays, float64(firstAlarm(r))-s[0])
				if delays[len(delays)-1] == 0 {
					together++
				}
			}
		}
		l.Check(fmt.Sprintf("`%s`, measured every step: the alarm comes in the step of the first spike, not before and not after, for every seed", recipe),
			fmt.Sprintf("%s steps after it; in that step in %d of %d runs", finding.Span("%.0f", delays), together, len(list)), together == len(list))
	}
	missed := 0
	for _, r := range byName["fp8-delayed health_every=10"] {
		if firstAlarm(r) == 0 {
			missed++
		}
	}
	l.Check("`fp8-delayed`, measured every tenth step: 100 steps with about five spikes pass without an alarm in at least 2 of 5 runs", fmt.Sprintf("%d of 5", missed), missed >= 2)
	better := func(recipe string) []float64 {
		var list []float64
		base := lossOf(byName["bf16 health_every=1"])
		for i, v := range lossOf(byName[recipe+" health_every=1"]) {
			list = append(list, 100*(v/base[i]-1))
		}
		return list
	}
	l.Check("After 100 steps delayed scaling has lost more than current scaling, and current more than `fp8-smooth` (medians, against bf16)",
		finding.Span("%+.2f %%", better("fp8-delayed"))+"; "+finding.Span("%+.2f %%", better("fp8-current"))+"; "+finding.Span("%+.2f %%", better("fp8-smooth")),
		stats.Median(better("fp8-delayed")) > stats.Median(better("fp8-current")) && stats.Median(better("fp8-current")) > stats.Median(better("fp8-smooth")))
}
