package inspect

import (
	"fmt"
	"math"
	"strings"

	"octet/internal/writers"
)

const (
	// With a scale of its own, the smallest E4M3 lies 17.8 binades below the
	// largest: where more than half of a moment lies below that, a few outliers
	// have taken the scale from the rest.
	mostZeros = 0.5
	// Four binades are what scales of gradients keep free; a maximum that grows by
	// more within an update saturates whatever was cast with the scale before it.
	mostGrowth = 16
	// The limits of scales, see fp8.ScaleFor.
	minScale, maxScale = 0x1p-126, 0x1p126
)

// examine fills Health in.
func (r *Report) examine() {
	if n := r.State.Skipped; n > 0 {
		r.find("the last %d steps were skipped: their gradients were not finite", n)
	}
	if n := r.State.Rewinds; n > 0 {
		r.find("the run went back %d times because its loss spiked", n)
	}
	for _, t := range r.Tensors {
		moment := strings.HasSuffix(t.Name, ".m1") || strings.HasSuffix(t.Name, ".m2")
		if t.NotFinite > 0 {
			r.find("%s: %s of %s values are not finite", t.Name, writers.Count(t.NotFinite), writers.Count(t.Elements()))
		}
		if moment && t.dtype.IsFP8() && t.Zeros != nil && *t.Zeros > mostZeros {
			r.find("%s: %.0f%% of its values are too small for %s beside the largest, and zero", t.Name, 100*float64(*t.Zeros), t.Format)
		}
	}
	for i := range r.Casts {
		r.examineCast(&r.Casts[i])
	}
}

func (r *Report) find(format string, args ...any) {
	r.Health = append(r.Health, fmt.Sprintf(format, args...))
}

// examineCast names the first thing that is wrong with a cast: the rest follows
// from it.
func (r *Report) examineCast(c *Cast) {
	older := float32(0)
	for i, a := range c.history {
		if !(a >= 0 && a <= math.MaxFloat32) {
			r.find("%s: a maximum in its history is %v", c.Name, a)
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
		r.find("%s: its scale %v is at the end of the range of scales", c.Name, float32(c.Scale))
	case c.Fill > 1 && !strings.Contains(c.Name, ".weight."): // a weight's current scale is newer than its newest maximum
		r.find("%s: its newest maximum %.4g is cast by scale %v, beyond the largest %s: it saturates", c.Name, float32(c.Newest), float32(c.Scale), c.format)
	case c.Updates == 0 && r.State.Step > 0:
		r.find("%s: nothing but zeros were cast in the last %d updates", c.Name, c.Window)
	case older > 0 && c.Newest > mostGrowth*writers.Float(older):
		r.find("%s: its maximum grew from %.4g at most to %.4g within an update", c.Name, older, float32(c.Newest))
	}
}
