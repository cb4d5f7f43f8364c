package trial

import (
	"math"
	"strings"

	"octet/backend"
	"octet/train"
)

// Apart is by how much the steps of two runs differ: the root mean square over the
// steps, and the mean with its sign, of the losses in nats and of the logarithms of the
// gradients' norms. One step that is off hardly shows; a factor that is wrong is wrong
// in every step, and shows in the mean.
type Apart struct{ Loss, LossDrift, Norm, NormDrift float64 }

// Between compares runs of as many steps.
func Between(a, b []train.StepResult) (d Apart) {
	n := float64(len(a))
	for i := range a {
		loss, norm := b[i].Loss-a[i].Loss, math.Log(b[i].GradNorm/a[i].GradNorm)
		d.Loss += loss * loss / n
		d.LossDrift += loss / n
		d.Norm += norm * norm / n
		d.NormDrift += norm / n
	}
	return Apart{math.Sqrt(d.Loss), math.Abs(d.LossDrift), math.Sqrt(d.Norm), math.Abs(d.NormDrift)}
}

// Within is what n steps may be apart of which each may be by loss and norm, both root
// mean squares, with errors that know nothing of each other: their mean is √n times
// closer.
func Within(loss, norm float64, n int) Apart {
	mean := math.Sqrt(float64(n))
	return Apart{loss, loss / mean, norm, norm / mean}
}

// Exceeds reports whether a difference is not within a tolerance; NaN is not.
func (d Apart) Exceeds(most Apart) bool {
	return !(d.Loss <= most.Loss && d.LossDrift <= most.LossDrift && d.Norm <= most.Norm && d.NormDrift <= most.NormDrift)
}

// InputScale is the factor by which a step casts what the first layer's q, k and v read;
// nil where the recipe has none. A test that spoils it must see the runs part.
func InputScale(j *train.Job) *backend.Tensor {
	for _, n := range j.Micro[train.Variant{First: true, Last: j.Config.Train.Accumulate == 1}].Nodes() {
		for _, o := range n.Operands() {
			if name := o.Tensor.Name; strings.HasPrefix(name, "layers.0.self_attn.input.") && strings.HasSuffix(name, ".scale") {
				return o.Tensor
			}
		}
	}
	return nil
}
