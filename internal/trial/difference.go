package trial

import (
	"math"
	"strings"

	"octet/backend"
	"octet/train"
)

// Difference measures how much the steps of two runs differ: Loss and Norm are the root
// mean squares over the steps of the differences of the losses in nats and of the logarithms
// of the gradient norms; LossDrift and NormDrift are the absolute values of the mean
// differences. A wrong scale affects every step in the same direction and shows in the
// drift.
type Difference struct{ Loss, LossDrift, Norm, NormDrift float64 }

// Between returns the difference of two runs with equal numbers of steps.
func Between(a, b []train.StepResult) (d Difference) {
	n := float64(len(a))
	for i := range a {
		loss, norm := b[i].Loss-a[i].Loss, math.Log(b[i].GradNorm/a[i].GradNorm)
		d.Loss += loss * loss / n
		d.LossDrift += loss / n
		d.Norm += norm * norm / n
		d.NormDrift += norm / n
	}
	return Difference{math.Sqrt(d.Loss), math.Abs(d.LossDrift), math.Sqrt(d.Norm), math.Abs(d.NormDrift)}
}

// Tolerance returns the permitted difference of n steps whose losses and norms may differ
// by the root mean squares loss and norm. The errors of steps are taken as independent, so
// the mean may differ by 1/√n of that.
func Tolerance(loss, norm float64, n int) Difference {
	root := math.Sqrt(float64(n))
	return Difference{loss, loss / root, norm, norm / root}
}

// Exceeds reports whether any field of d exceeds that of limit or is NaN.
func (d Difference) Exceeds(limit Difference) bool {
	return !(d.Loss <= limit.Loss && d.LossDrift <= limit.LossDrift && d.Norm <= limit.Norm && d.NormDrift <= limit.NormDrift)
}

// InputScale returns the scale of the input of the first layer's q, k and v, nil if the
// recipe has none. Tests corrupt it and check that the runs then differ.
func InputScale(j *train.Job) *backend.Tensor {
	first := j.Model.AttentionOf()(j.Model.Linears()[0].Scope)
	for _, n := range j.Micro[train.Variant{First: true, Last: j.Config.Train.Accumulate == 1}].Nodes() {
		for _, o := range n.Operands() {
			if name := o.Tensor.Name; strings.HasPrefix(name, first+".input.") && strings.HasSuffix(name, ".scale") {
				return o.Tensor
			}
		}
	}
	return nil
}
