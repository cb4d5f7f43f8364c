package finding

import (
	"fmt"
	"math"
	"slices"

	"octet/internal/runs"
	"octet/internal/sweep"
)

// Seeds is the number of seeds that predictions are about.
const Seeds = 5

// Sweep returns the runs of the sweep in dir by the names of their variants. The sweep must be complete
// and have these variants, each with as many seeds as predictions are about; file names the sweep file
// that has them.
func Sweep(dir, file string, names ...string) (map[string][]*runs.Run, error) {
	groups, err := sweep.Complete(dir)
	if err != nil {
		return nil, err
	}
	byName := map[string][]*runs.Run{}
	for _, g := range groups {
		byName[g.Name] = g.Runs
	}
	for _, name := range names {
		if n := len(byName[name]); n != Seeds {
			return nil, fmt.Errorf("%s has %d runs of %q, not %d: it is not a sweep of %s", dir, n, name, Seeds, file)
		}
	}
	return byName, nil
}

// Known returns the values that are not NaN.
func Known(values []float64) []float64 {
	return slices.DeleteFunc(slices.Clone(values), math.IsNaN)
}

// Abs returns the magnitudes of the values.
func Abs(values []float64) []float64 {
	list := make([]float64, len(values))
	for i, v := range values {
		list[i] = math.Abs(v)
	}
	return list
}

// ValLosses returns the last validation loss of each run, in nats per token.
func ValLosses(list []*runs.Run) (losses []float64) {
	for _, r := range list {
		loss, ok := r.Metrics["val_loss"].Last()
		if !ok {
			loss = math.NaN()
		}
		losses = append(losses, loss)
	}
	return losses
}

// Above returns how far each value is above that of base at the same index, in percent.
func Above(values, base []float64) (list []float64) {
	for i, v := range values {
		list = append(list, 100*(v/base[i]-1))
	}
	return list
}

// OverRMS returns the largest amax of a layer's channels over the rms of the other channels', at
// each measurement of a run.
func OverRMS(r *runs.Run, layer string) []float64 {
	ratio, others := r.Channels.Field(layer, "amax"), r.Channels.Field(layer, "others_rms")
	for i := range ratio {
		ratio[i] /= others[i]
	}
	return ratio
}

// LargestOverRMS returns the largest of OverRMS over the layers and measurements of a run.
func LargestOverRMS(r *runs.Run) (most float64) {
	for _, layer := range r.Channels.Names() {
		most = max(most, slices.Max(OverRMS(r, layer)))
	}
	return most
}
