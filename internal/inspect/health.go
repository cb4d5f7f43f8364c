package inspect

import (
	"fmt"
	"math"
	"strings"

	"octet/checkpoint"
	"octet/internal/writers"
	"octet/nn"
)

const (
	// maxZeros is the largest healthy share of zeros in a moment. The smallest E4M3 value
	// lies 17.8 binades below the largest: if more than half of a moment underflows, a few
	// outliers determine the scale.
	maxZeros = 0.5
	// maxGrowth is the largest healthy growth of an amax in one update. Gradient scales have
	// a margin of four binades; larger growth saturates casts with the previous scale.
	maxGrowth = 16
	// Limits of scales, see fp8.ScaleFor.
	minScale, maxScale = 0x1p-126, 0x1p126
)

// examine fills Health.
func (r *Report) examine(config checkpoint.Config) {
	if act := config.HiddenAct; act != "silu" {
		if _, err := nn.LookupActivation(nn.Activation(act)); err != nil {
			r.find("%s: hidden_act: %v", checkpoint.ConfigFile, err)
		}
	}
	if n := r.State.Skipped; n > 0 {
		r.find("the last %d steps were skipped: their gradients were not finite", n)
	}
	if n := r.State.Rewinds; n > 0 {
		r.find("the run rewound %d times after loss spikes", n)
	}
	for _, t := range r.Tensors {
		moment := strings.HasSuffix(t.Name, ".m1") || strings.HasSuffix(t.Name, ".m2")
		if t.NotFinite > 0 {
			r.find("%s: %s of %s values are not finite", t.Name, writers.Count(t.NotFinite), writers.Count(t.Elements()))
		}
		if moment && t.dtype.IsQuantized() && t.Zeros != nil && t.flushed() > maxZeros {
			r.find("%s: %.0f%% of its values are zero: %s cannot hold them beside the largest value", t.Name, 100*t.flushed(), t.Format)
		}
	}
	for i := range r.Casts {
		r.examineCast(&r.Casts[i])
	}
}

// flushed returns the share of zeros in a moment. In the embedding's, rows of zeros belong to
// tokens that never came and do not count.
func (t Tensor) flushed() float64 {
	zeros, n := float64(*t.Zeros), float64(t.Elements())
	if !strings.HasPrefix(t.Name, checkpoint.EmbeddingWeight+".") || t.idle == t.Elements() {
		return zeros
	}
	return (zeros*n - float64(t.idle)) / (n - float64(t.idle))
}

func (r *Report) find(format string, args ...any) {
	r.Health = append(r.Health, fmt.Sprintf(format, args...))
}

// examineCast reports the first problem of a cast; others would follow from it.
func (r *Report) examineCast(c *Cast) {
	older := float32(0)
	for i, a := range c.history {
		if !(a >= 0 && a <= math.MaxFloat32) {
			r.find("%s: an amax in its history is %v", c.Name, a)
			return
		}
		if i > 0 {
			older = max(older, a)
		}
	}
	switch {
	case !(c.Scale >= minScale && c.Scale <= maxScale):
		r.find("%s: its scale is %v", c.Name, float32(c.Scale))
	case math.Abs(float64(c.Scale*c.ScaleInv)-1) > 1e-6:
		r.find("%s: its scale %v and its scale_inv %v are not each other's inverse", c.Name, float32(c.Scale), float32(c.ScaleInv))
	case c.Scale == minScale || c.Scale == maxScale:
		r.find("%s: its scale %v is at the limit of the range of scales", c.Name, float32(c.Scale))
	case c.Fill > 1 && !strings.Contains(c.Name, ".weight."): // a weight's current scale is newer than its newest amax
		r.find("%s: its newest amax %.4g times its scale %v exceeds the largest %s value: the cast saturates", c.Name, float32(c.Newest), float32(c.Scale), c.format)
	case c.Updates == 0 && r.State.Step > 0:
		r.find("%s: only zeros were cast in the last %d updates", c.Name, c.Window)
	case older > 0 && c.Newest > maxGrowth*writers.Float(older):
		r.find("%s: its amax grew from at most %.4g to %.4g in one update", c.Name, older, float32(c.Newest))
	}
}
