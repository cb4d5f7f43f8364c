package sweep

import (
	"math"
	"path/filepath"

	"octet/internal/runs"
	"octet/internal/stats"
)

// Records summarizes the records of a variant's finished runs, beside their validation losses.
type Records struct {
	Variant *Variant
	// WorstStep holds, of each pair of runs with equal seeds, the largest difference of the
	// training losses at one step, in nats per token: infinite where a loss is not finite and
	// the baseline's is.
	WorstStep []float64
	// LargestUpdate is the largest update of an element in units of the learning rate, over all
	// runs and steps; NaN without optimizer.stats.
	LargestUpdate float64
	Spikes        int     // of all runs, as their logs report them
	StepSeconds   float64 // median over the runs of the median over the steps
}

// Records reads the records of the runs that are done: all of their metrics.jsonl, timing.jsonl
// and run.log.
func (s *Sweep) Records() (list []Records) {
	read := map[string]*recorded{} // by folder of the run
	for _, r := range s.Rows() {
		if r.State == Done {
			read[r.Folder] = s.recordsOf(r)
		}
	}
	for _, v := range s.Variants {
		sum := Records{Variant: v, LargestUpdate: math.NaN()}
		var seconds []float64
		for _, seed := range v.Seeds {
			own := read[runFolder(v.Folder, seed)]
			if own == nil {
				continue
			}
			if !(own.largestUpdate <= sum.LargestUpdate) {
				sum.LargestUpdate = own.largestUpdate
			}
			sum.Spikes += own.spikes
			seconds = append(seconds, own.stepSeconds)
			if v.Baseline == nil {
				continue
			}
			if base := read[runFolder(v.Baseline.Folder, seed)]; base != nil {
				sum.WorstStep = append(sum.WorstStep, worstStep(own.losses, base.losses))
			}
		}
		sum.StepSeconds = stats.Median(seconds)
		list = append(list, sum)
	}
	return list
}

// recorded holds the records of a run.
type recorded struct {
	losses                     []float64 // by step
	largestUpdate, stepSeconds float64
	spikes                     int
}

// recordsOf reads the records of a run; those that are missing are NaN.
func (s *Sweep) recordsOf(r Row) *recorded {
	own := &recorded{largestUpdate: math.NaN(), stepSeconds: math.NaN()}
	run, err := runs.Open(filepath.Join(s.Dir, r.Folder))
	if err != nil {
		return own // the folder was removed meanwhile
	}
	own.losses = run.Metrics["loss"].All()
	for _, x := range run.Metrics["update.largest"].All() {
		if !(x <= own.largestUpdate) {
			own.largestUpdate = x
		}
	}
	own.stepSeconds = stats.Median(run.Timing["step_s"].All())
	for _, a := range run.Alarms {
		if a.Message == "spike" {
			own.spikes++
		}
	}
	return own
}

// worstStep returns the largest difference own - base; +Inf if only own has a value that is not
// finite, and NaN for no common step.
func worstStep(own, base []float64) float64 {
	worst := math.NaN()
	for i := range min(len(own), len(base)) {
		d := own[i] - base[i]
		switch {
		case math.IsNaN(base[i]):
			continue
		case math.IsNaN(d):
			d = math.Inf(1)
		}
		if !(d <= worst) {
			worst = d
		}
	}
	return worst
}
