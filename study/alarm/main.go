// Command alarm tells when the telemetry of runs saw an outlier channel that few batches excite. It
// reads the runs of study/sweeps/sporadic.toml.
//
//	go run ./study/aligned -write planted
//	go run ./study/aligned -write planted-10 -size 10
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
	"octet/study/internal/finding"
	"octet/train"
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
	names := []string{"bf16, 2^20", "fp8-delayed, 2^20", "fp8-current, 2^20", "fp8-smooth, 2^20", "bf16, 2^10", "bf16, 2^10, every tenth step"}
	byName, err := finding.Sweep(dir, "study/sweeps/sporadic.toml", names...)
	if err != nil {
		return err
	}
	var rows [][]string
	for _, name := range names {
		list := byName[name]
		var first, spike, ratio, kurtosis, sqnr []float64
		for _, r := range list {
			first, spike = append(first, firstAbove(r, train.OutlierRatio)), append(spike, firstSpike(name, r))
			ratio = append(ratio, finding.LargestOverRMS(r))
			low, high := extremes(r)
			kurtosis, sqnr = append(kurtosis, high), append(sqnr, low)
		}
		alarmed, spiked := finding.Known(first), finding.Known(spike)
		rows = append(rows, []string{
			name, fmt.Sprintf("%d of %d, %s", len(spiked), len(list), finding.Span("%.0f", spiked)),
			fmt.Sprintf("%d of %d, %s", len(alarmed), len(list), finding.Span("%.0f", alarmed)), finding.Span("%.3g", ratio),
			finding.Span("%.0f", finding.Known(kurtosis)), finding.Span("%.1f", finding.Known(sqnr)),
			finding.Span("%.3f", trained(list)), finding.Span("%.3f", finding.ValLosses(list)),
		})
	}
	return errors.Join(finding.Table(os.Stdout, "An outlier in one batch of twenty", []string{
		"runs", "with a measured spike, first at step", "with an alarm, first at step", "largest amax / rms of the others",
		"largest kurtosis of a", "lowest SQNR of a, dB", "training loss, last 40 steps", "validation loss",
	}, rows), predictions(byName).Write(os.Stdout))
}

// firstAbove returns the first measured step at which a channel exceeds the others' rms so many times;
// NaN if none does.
func firstAbove(r *runs.Run, ratio float64) float64 {
	first := math.NaN()
	for _, layer := range r.Channels.Names() {
		for i, v := range finding.OverRMS(r, layer) {
			if step := r.Channels.Steps[i]; v >= ratio && !(step >= first) {
				first = step
			}
		}
	}
	return first
}

// firstSpike returns the first measured step whose batch has outlier tokens: the channel exceeds the
// others 10^5 times at 2^20, without these tokens 10^4 times; at 2^10 the bound is the alarm's.
func firstSpike(name string, r *runs.Run) float64 {
	if strings.Contains(name, "2^20") {
		return firstAbove(r, 1e5)
	}
	return firstAbove(r, train.OutlierRatio)
}

// extremes returns the lowest signal-to-noise ratio and the largest kurtosis of the casts of a over the
// layers and measurements; NaN without such casts.
func extremes(r *runs.Run) (sqnr, kurtosis float64) {
	sqnr, kurtosis = math.NaN(), math.NaN()
	for _, name := range r.Casts.Names() {
		if !strings.HasSuffix(name, "mlp.hidden.e4m3") {
			continue
		}
		for _, v := range finding.Known(r.Casts.Field(name, "sqnr_db")) {
			if !(v >= sqnr) {
				sqnr = v
			}
		}
		for _, v := range finding.Known(r.Casts.Field(name, "kurtosis")) {
			if !(v <= kurtosis) {
				kurtosis = v
			}
		}
	}
	return sqnr, kurtosis
}

// trained returns the mean training loss of the last 40 steps of each run.
func trained(list []*runs.Run) (losses []float64) {
	for _, r := range list {
		all := r.Metrics["loss"].Values
		losses = append(losses, stats.Mean(all[len(all)-40:]))
	}
	return losses
}

// predictions compares the runs with what was written here before them. The two predictions about 2^20
// were written when runs of that kind were known.
func predictions(byName map[string][]*runs.Run) *finding.List {
	var l finding.List
	large := byName["bf16, 2^20"]
	early := 0
	for _, r := range large {
		if firstAbove(r, train.OutlierRatio) < firstSpike("bf16, 2^20", r) {
			early++
		}
	}
	l.Check("2^20, measured every step: the alarm precedes the first spike, for every seed", fmt.Sprintf("%d of %d", early, len(large)), early == len(large))
	above := func(recipe string) []float64 { return finding.Above(trained(byName[recipe+", 2^20"]), trained(large)) }
	delayed, current, smooth := above("fp8-delayed"), above("fp8-current"), above("fp8-smooth")
	ordered := true
	for i := range delayed {
		ordered = ordered && delayed[i] > current[i] && current[i] > smooth[i]
	}
	l.Check("2^20: of the training loss of the last 40 steps delayed scaling loses more than current, current more than `fp8-smooth`, for every seed",
		finding.Span("%+.2f %%", delayed)+"; "+finding.Span("%+.2f %%", current)+"; "+finding.Span("%+.2f %%", smooth), ordered)

	quiet := func(name string) (n int) {
		for _, r := range byName[name] {
			if math.IsNaN(firstAbove(r, train.OutlierRatio)) {
				n++
			}
		}
		return n
	}
	small := byName["bf16, 2^10"]
	before := 0
	for _, r := range small {
		if r.Channels.Steps[0] == firstAbove(r, train.OutlierRatio) {
			before++
		}
	}
	l.Check("2^10, measured every step: no alarm at the first step, but one within 100 steps, for at least 4 of 5 seeds",
		fmt.Sprintf("%d at the first step, %d without", before, quiet("bf16, 2^10")), before+quiet("bf16, 2^10") <= 1)
	l.Check("2^10, measured every tenth step: 100 steps with about five spikes pass without an alarm, for at least 2 of 5 seeds",
		fmt.Sprintf("%d of 5", quiet("bf16, 2^10, every tenth step")), quiet("bf16, 2^10, every tenth step") >= 2)
	return &l
}
