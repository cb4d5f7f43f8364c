package sweep

import (
	"bytes"
	"encoding/csv"
	"math"
	"path/filepath"
	"strconv"

	"octet/internal/disk"
	"octet/internal/stats"
)

// resultsFile has a line for each run.
const resultsFile = "results.csv"

// Rows returns the runs, all variants of the first seed first.
func (s *Sweep) Rows() (list []Row) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range s.rows {
		list = append(list, *r)
	}
	return list
}

// Summary compares the runs of a variant that are done with those of its baseline.
type Summary struct {
	Variant      *Variant
	Done, Failed int
	// Mean, Min and Max of the validation losses, in nats per token; NaN if a loss is not
	// finite, or if no run is done.
	Mean, Min, Max float64
	// Difference is that of the validation losses of runs with equal seeds, in percent of the
	// baseline's loss. N is 0 without a baseline.
	Difference stats.Paired
}

// Summaries returns a summary of each variant.
func (s *Sweep) Summaries() (list []Summary) {
	losses := map[*Variant]map[int64]float64{} // of runs that are done, by seed
	failed := map[*Variant]int{}
	for _, r := range s.Rows() {
		switch {
		case r.State == Failed:
			failed[r.Variant]++
		case r.State == Done:
			if losses[r.Variant] == nil {
				losses[r.Variant] = map[int64]float64{}
			}
			losses[r.Variant][r.Seed] = r.ValLoss
		}
	}
	for _, v := range s.Variants {
		var own, differences []float64
		for _, seed := range v.Seeds {
			x, done := losses[v][seed]
			if !done {
				continue
			}
			own = append(own, x)
			if v.Baseline == nil {
				continue
			}
			if base, done := losses[v.Baseline][seed]; done {
				differences = append(differences, 100*(x-base)/base)
			}
		}
		all := stats.PairedOf(own) // for its extremes, which are NaN where a loss is
		list = append(list, Summary{
			Variant: v, Done: len(own), Failed: failed[v],
			Mean: all.Mean, Min: all.Min, Max: all.Max, Difference: stats.PairedOf(differences),
		})
	}
	return list
}

// writeCSV writes results.csv; the caller holds mu, or is alone.
func (s *Sweep) writeCSV() error {
	var text bytes.Buffer
	w := csv.NewWriter(&text)
	lines := [][]string{{"variant", "seed", "backend", "state", "step", "steps", "loss", "val_loss", "run", "error"}}
	for _, r := range s.rows {
		v, state := r.Variant, r.State
		if r.running {
			state = running
		}
		lines = append(lines, []string{
			v.Name, strconv.FormatInt(r.Seed, 10), v.device, string(state), strconv.Itoa(r.Step), strconv.Itoa(v.Config.Train.Steps),
			number(r.Loss), number(r.ValLoss), filepath.ToSlash(r.Folder), r.Error,
		})
	}
	if err := w.WriteAll(lines); err != nil {
		return err
	}
	return disk.WriteAtomic(filepath.Join(s.Dir, resultsFile), text.Bytes())
}

// number returns the fewest digits that read back as the same bits; nothing for NaN.
func number(x float64) string {
	if math.IsNaN(x) {
		return ""
	}
	return strconv.FormatFloat(x, 'g', -1, 64)
}
