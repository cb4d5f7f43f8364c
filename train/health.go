package train

import (
	"context"
	"errors"
	"math"

	"octet/backend"
)

// CastHealth holds the measured errors and the scale of one cast. See backend.CastHealth.
type CastHealth struct {
	Name               string       // tensor and format: "layers.3.mlp.input.e4m3"
	Amax               float64      // of the tensor, before the cast
	Scale              float64      // multiplies before the cast; 0 if Scales is not nil
	Scales             *ScaleHealth // set for casts with per-row or block scales, else nil
	Saturated, Flushed float64      // fractions of the elements that saturated, that underflowed to 0
	AmaxRMS            float64      // the tensor's largest magnitude over its root mean square; 0 for a tensor of zeros
	Kurtosis           float64      // mean of x⁴ / (mean of x²)²: 3 for normal numbers; of a rotated cast, after the rotation
	SQNR               float64      // signal-to-quantization-noise ratio in dB; +Inf for an exact cast, NaN for a non-finite tensor
}

// ScaleHealth summarizes the per-row or block scales of a cast, which multiply before
// the cast, with the outer scale if there is one. Scales of blocks of zeros are included,
// infinite ones (a stored scale_inv of 0) are not.
type ScaleHealth struct {
	Min, Max          float64
	Log2Mean, Log2Std float64 // of log2 of the scale
	ZeroBlocks        float64 // share of the blocks whose elements are all 0
	Lowest, Highest   float64 // shares of the stored scale_inv at the bounds of their format: fp8.DType.ScaleRange
	Outer             float64 // outer scale_inv, of the whole tensor; 1 without one
}

// Health holds the telemetry of a step.
type Health struct {
	Casts  []CastHealth
	SwiGLU []SwiGLUHealth
	Alarms []string // warnings, one line each
}

// Health measures the casts and SwiGLU channels of the first rank's most recent
// micro-batch, with the weights and scales that the next step will use. It takes
// the time of a micro-batch and does not affect training. It requires
// train.health_every above 0 and must follow Next directly.
func (t *Trainer) Health(ctx context.Context) (h Health, err error) {
	if t.Job.Health == nil {
		return h, errors.New("telemetry is off: set train.health_every above 0")
	}
	if err := t.stateError(); err != nil {
		return h, err
	}
	if t.group.Rank() > 0 && t.Config.shards() == 1 && t.Config.tensor() == 1 {
		return h, nil
	}
	// Ranks that share masters gather them, for the casts of weights, and ranks that share layers their tokens.
	if err := t.run(ctx, t.device.health); err != nil || t.group.Rank() > 0 {
		return h, err
	}
	if h.Casts, err = t.castHealth(); err != nil {
		return h, err
	}
	if h.SwiGLU, err = t.channelHealth(); err != nil {
		return h, err
	}
	for _, s := range h.SwiGLU {
		if alarm := t.outliers.check(s); alarm != "" {
			h.Alarms = append(h.Alarms, alarm)
		}
	}
	return h, nil
}

func (t *Trainer) castHealth() (list []CastHealth, err error) {
	if t.health.Casts == nil {
		return nil, nil
	}
	measured, err := t.localFloats(t.health.Casts)
	if err != nil {
		return nil, err
	}
	var amax []float32
	if !t.Model.Scales.Empty() {
		if amax, err = t.localFloats(t.Model.Scales.Amax); err != nil {
			return nil, err
		}
	}
	for i, c := range t.Model.HealthCasts() {
		m := measured[backend.HealthFields*i:]
		h := CastHealth{
			Name: c.Name, Amax: float64(m[backend.HealthAmax]),
			Saturated: float64(m[backend.HealthSaturated]), Flushed: float64(m[backend.HealthFlushed]),
			Kurtosis: float64(m[backend.HealthKurtosis]),
			SQNR:     -10 * math.Log10(float64(m[backend.HealthNoise])),
		}
		if h.Amax > 0 {
			h.AmaxRMS = h.Amax / float64(m[backend.HealthRMS])
		}
		if c.Record >= 0 {
			h.Amax = float64(amax[c.Record])
		}
		if c.Blocks {
			outer := float64(m[backend.HealthOuter])
			h.Scales = &ScaleHealth{
				Min: 1 / (float64(m[backend.HealthScaleInvMax]) * outer), Max: 1 / (float64(m[backend.HealthScaleInvMin]) * outer),
				Log2Mean: -float64(m[backend.HealthScaleInvLog2Mean]) - math.Log2(outer), Log2Std: float64(m[backend.HealthScaleInvLog2Std]),
				ZeroBlocks: float64(m[backend.HealthZeroBlocks]), Outer: outer,
				Lowest: float64(m[backend.HealthLowestScales]), Highest: float64(m[backend.HealthHighestScales]),
			}
		} else {
			h.Scale = 1 / float64(m[backend.HealthScaleInvMin])
		}
		list = append(list, h)
	}
	return list, nil
}
