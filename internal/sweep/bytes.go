package sweep

import (
	"math"

	"octet/backend"
	"octet/train"
)

// Bytes is what a variant stores and sends, as octet plan counts it, averaged over the model.
type Bytes struct {
	Parameter  float64 // master weight, gradient and moments of a parameter, on a single rank
	Activation float64 // an element that the forward pass leaves for the backward pass
	// Sent is what each of SentRanks ranks with train.zero_stage = 1 sends in a step, per
	// parameter of the model; NaN for a variant that cannot have these ranks.
	Sent float64
}

// SentRanks is the number of ranks of [Bytes.Sent].
const SentRanks = 8

// Bytes plans a variant on its backend, whose device need not be present. Values are NaN for a
// variant that this binary cannot plan.
func (s *Sweep) Bytes(v *Variant) Bytes {
	b := Bytes{math.NaN(), math.NaN(), math.NaN()}
	driver, device, err := backend.Find(s.backendOf(v))
	if err != nil {
		return b
	}
	spec, err := driver.Spec(device)
	if err != nil {
		return b
	}
	c := v.Config
	c.Train.Ranks, c.Train.ZeroStage = 1, 0
	if job, err := train.NewJob(c, spec); err == nil {
		b.Parameter, b.Activation = job.ParameterBytes(), job.ActivationBytes()
	}
	c.Train.Ranks, c.Train.ZeroStage = SentRanks, 1
	if job, err := train.NewJob(c, spec); err == nil {
		b.Sent = job.SentBytes()
	}
	return b
}
