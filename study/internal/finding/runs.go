package finding

import (
	"math"
	"slices"

	"octet/internal/runs"
)

// Known returns the values that are not NaN.
func Known(values []float64) []float64 {
	return slices.DeleteFunc(slices.Clone(values), math.IsNaN)
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
