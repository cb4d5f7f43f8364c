package train

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"

	"octet/backend"
)

// CastHealth is how one cast of a step fared. See backend.CastHealth.
type CastHealth struct {
	Name               string       // of what was cast, and its format: "layers.3.mlp.input.e4m3"
	Amax               float64      // of the tensor, before the cast
	Scale              float64      // multiplies before the cast; 0 where Scales is not nil
	Scales             *ScaleHealth // of a cast with per-row or per-block scales, else nil
	Saturated, Flushed float64      // shares of the elements
	SQNR               float64      // signal-to-quantization-noise ratio in dB; +Inf without an error, NaN if the tensor was not finite
}

// ScaleHealth describes the per-row or per-block scales of a cast, which multiply before
// the cast. The scales of zero blocks count.
type ScaleHealth struct {
	Min, Max          float64
	Log2Mean, Log2Std float64 // of log2 of the scale
}

// SwiGLUHealth is the channel of a layer's MLP whose activation is largest: what
// becomes the outlier when its rows of up_proj and gate_proj align (method.md).
type SwiGLUHealth struct {
	Layer            string // "layers.3"
	Channel          int
	Amax, Median     float64 // of |a|: this channel's maximum, and the median of all channels' maxima
	Cosine           float64 // between its rows of up_proj and gate_proj
	NormUp, NormGate float64 // their lengths
}

// Health is what a telemetry step reports.
type Health struct {
	Casts  []CastHealth
	SwiGLU []SwiGLUHealth
	Alarms []string // one line each
}

// Health measures the casts and the SwiGLUs of the micro-batch that the first
// rank has just trained on, with the weights and scales that the next step will
// use. It costs a micro-batch and changes nothing that training computes. It
// needs train.health_every above 0, and belongs right behind Next.
func (t *Trainer) Health(ctx context.Context) (h Health, err error) {
	if t.Job.Health == nil {
		return h, errors.New("health was not recorded: set train.health_every")
	}
	if err := t.settled(); err != nil {
		return h, err
	}
	if t.Config.shards() > 1 {
		// The weights are measured against masters that all ranks gather.
		err = t.each(ctx, func(ctx context.Context, r *rank) error { return t.run(ctx, r, r.health) })
	} else {
		err = t.run(ctx, t.ranks[0], t.ranks[0].health)
	}
	if err != nil {
		return h, err
	}
	if h.Casts, err = t.castHealth(); err != nil {
		return h, err
	}
	if h.SwiGLU, err = t.channelHealth(); err != nil {
		return h, err
	}
	for _, s := range h.SwiGLU {
		if alarm := t.alignment.check(s); alarm != "" {
			h.Alarms = append(h.Alarms, alarm)
		}
	}
	return h, nil
}

func (t *Trainer) castHealth() (list []CastHealth, err error) {
	if t.health.Casts == nil {
		return nil, nil
	}
	measured, err := t.readFloats(t.health.Casts)
	if err != nil {
		return nil, err
	}
	var amax []float32
	if !t.Model.Scales.Empty() {
		if amax, err = t.readFloats(t.Model.Scales.Amax); err != nil {
			return nil, err
		}
	}
	for i, c := range t.Model.HealthCasts() {
		m := measured[backend.HealthFields*i:]
		h := CastHealth{
			Name: c.Name, Amax: float64(m[backend.HealthAmax]),
			Saturated: float64(m[backend.HealthSaturated]), Flushed: float64(m[backend.HealthFlushed]),
			SQNR: -10 * math.Log10(float64(m[backend.HealthNoise])),
		}
		if c.Record >= 0 {
			h.Amax = float64(amax[c.Record])
		}
		if c.Blocks {
			h.Scales = &ScaleHealth{
				Min: 1 / float64(m[backend.HealthScaleInvMax]), Max: 1 / float64(m[backend.HealthScaleInvMin]),
				Log2Mean: -float64(m[backend.HealthScaleInvLog2Mean]), Log2Std: float64(m[backend.HealthScaleInvLog2Std]),
			}
		} else {
			h.Scale = 1 / float64(m[backend.HealthScaleInvMin])
		}
		list = append(list, h)
	}
	return list, nil
}

func (t *Trainer) channelHealth() (list []SwiGLUHealth, err error) {
	if t.health.Channels == nil {
		return nil, nil
	}
	x, err := t.readFloats(t.health.Channels)
	if err != nil {
		return nil, err
	}
	ffn := t.health.Channels.Cols()
	for layer := range t.Config.Model.Layers {
		row := func(i int) []float32 { return x[(4*layer+i)*ffn:][:ffn] }
		list = append(list, worstChannel(fmt.Sprintf("layers.%d", layer), row(0), row(1), row(2), row(3)))
	}
	return list, nil
}

// worstChannel finds it in a layer's channel maxima and its rows' cosines and
// lengths, each [ffn]. NaN counts as the largest.
func worstChannel(layer string, amax, cosine, up, gate []float32) SwiGLUHealth {
	worst := 0
	for i, a := range amax {
		if a > amax[worst] || a != a {
			worst = i
		}
	}
	sorted := slices.Sorted(slices.Values(amax))
	return SwiGLUHealth{
		Layer: layer, Channel: worst,
		Amax: float64(amax[worst]), Median: float64(sorted[len(sorted)/2]),
		Cosine: float64(cosine[worst]), NormUp: float64(up[worst]), NormGate: float64(gate[worst]),
	}
}

// Both must hold for an alarm. At random the cosine of rows of 128 numbers is
// below 0.3, and the largest of some thousand channels is three to five times
// the median.
const (
	alignedCosine = 0.8
	outlierRatio  = 10
)

// alignmentWatch remembers what was reported, so that a channel is named again
// only when it has grown by half.
type alignmentWatch struct{ reported map[string]float64 }

// check returns the alarm's line, or nothing.
func (w *alignmentWatch) check(h SwiGLUHealth) string {
	ratio := h.Amax / h.Median
	if math.Abs(h.Cosine) < alignedCosine || !(ratio >= outlierRatio) {
		return ""
	}
	key := fmt.Sprintf("%s/%d", h.Layer, h.Channel)
	if ratio < 1.5*w.reported[key] {
		return ""
	}
	if w.reported == nil {
		w.reported = map[string]float64{}
	}
	w.reported[key] = ratio
	return fmt.Sprintf("swiglu alignment rising in %s, channel %d: cosine %.2f, |a| %.0f x median", h.Layer, h.Channel, h.Cosine, ratio)
}
