package train

import (
	"context"
	"math"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/backend"
	"octet/fp8"
	"octet/recipe"
)

// Measurements between steps do not change the results of steps, under any recipe.
func TestHealthChangesNothing(t *testing.T) {
	for _, name := range recipe.Names() {
		c := small(t, name)
		c.Train.HealthEvery, c.Train.Accumulate = 1, 2
		plain, measured := newTrainer(t, c, 2, false), newTrainer(t, c, 2, false)
		for range 3 {
			want, got := steps(t, plain, 1)[0], steps(t, measured, 1)[0]
			require.Equal(t, want.Loss, got.Loss, name)
			require.Equal(t, want.GradNorm, got.GradNorm, name)
			h, err := measured.Health(context.Background())
			require.NoError(t, err, name)
			require.Len(t, h.SwiGLU, c.Model.Layers, name)
			for _, cast := range h.Casts {
				if cast.Scales != nil && !math.IsInf(cast.Scales.Max, 1) { // of a block far below the others
					require.Zero(t, cast.Scale, cast.Name)
					require.True(t, cast.Scales.Min > 0 && cast.Scales.Max >= cast.Scales.Min, "%s: %+v", name, cast.Scales)
					require.InDelta(t, math.Log2(cast.Scales.Max*cast.Scales.Min)/2, cast.Scales.Log2Mean, 1e-5+math.Log2(cast.Scales.Max/cast.Scales.Min)/2, cast.Name)
					require.True(t, cast.Scales.Log2Std >= 0, "%s: %+v", name, cast.Scales)
				} else if cast.Scales == nil {
					require.Positive(t, cast.Scale, "%s: %s", name, cast.Name)
				}
				require.Positive(t, cast.Amax, cast.Name)
				require.True(t, name == "fp8-unit" || cast.SQNR > leastSQNR(cast.Name), "%s: %+v", name, cast)
				require.True(t, cast.Saturated >= 0 && cast.Saturated < 0.5 && cast.Flushed >= 0, "%s: %+v", name, cast)
			}
			require.Empty(t, h.Alarms, name)
		}
	}
}

// leastSQNR returns a bound, in dB, for casts named by their format.
func leastSQNR(name string) float64 {
	if strings.Contains(name, ".e2m1.") {
		return 12
	}
	return 15
}

// A health pass measures every FP8 cast of any granularity, each in its own row with its
// own name.
func TestHealthMeasuresEveryCast(t *testing.T) {
	cases := map[string]func(c *Config){}
	for _, name := range recipe.Names() {
		cases[name] = func(c *Config) { c.Recipe = name }
	}
	cases["one layer per-row"] = func(c *Config) {
		c.Precision.Rows = []PrecisionRow{{Scope: "layers.0.self_attn.*", Granularity: "row", Scaling: "current", Rounding: "nearest"}}
	}
	for name, edit := range cases {
		t.Run(name, func(t *testing.T) {
			c := small(t, "fp8-delayed")
			c.Train.HealthEvery = 1
			edit(&c)
			j, err := NewJob(c, specOf(t, "emu"))
			require.NoError(t, err)
			unmeasured, measured := map[*backend.Tensor]bool{}, map[int]bool{}
			for v := range j.Vars.All() { // cached copies of weights
				if v.Class == backend.Stash && v.DType.IsQuantized() {
					unmeasured[v] = true
				}
			}
			for v := range unmeasured { // scales of blocks are no casts
				delete(unmeasured, v.Scale)
			}
			for _, n := range j.Health.Nodes() {
				for c := range backend.Casts(n.Op) {
					if c.Out.DType.IsQuantized() {
						unmeasured[c.Out] = true
					}
				}
			}
			for _, p := range j.Model.Params { // the health pass measures no gradients of weights
				delete(unmeasured, p.Grad)
				delete(unmeasured, p.Reduced)
			}
			casts := len(unmeasured)
			for _, n := range j.Health.Nodes() {
				if o, ok := n.Op.(*backend.CastHealth); ok {
					delete(unmeasured, o.Codes)
					measured[o.Out.Offset] = true
				}
			}
			require.Empty(t, unmeasured)
			require.Len(t, measured, casts)
			names := map[string]bool{}
			for _, c := range j.Model.HealthCasts() {
				names[c.Name] = true
			}
			require.Len(t, names, casts)
		})
	}
}

// With scales of 1, more than a tenth of some gradient underflows to 0.
func TestHealthSeesFlushedGradients(t *testing.T) {
	for name, want := range map[string]bool{"fp8-unit": true, "fp8-delayed": false} {
		c := small(t, name)
		c.Train.HealthEvery = 1
		tr := newTrainer(t, c, 2, false)
		steps(t, tr, 1)
		h, err := tr.Health(context.Background())
		require.NoError(t, err)
		worst := 0.0
		for _, cast := range h.Casts {
			if strings.Contains(cast.Name, "grad") {
				worst = max(worst, cast.Flushed)
			}
		}
		require.Equal(t, want, worst > 0.1, "%s: %v", name, worst)
	}
}

// Health reports the scale that the cast used, also a current one: the amax is scaled to
// more than half of the format's maximum.
func TestHealthSeesCurrentScales(t *testing.T) {
	c := small(t, "fp8-current")
	c.Train.HealthEvery = 1
	tr := newTrainer(t, c, 2, false)
	steps(t, tr, 2)
	h, err := tr.Health(context.Background())
	require.NoError(t, err)
	for _, cast := range h.Casts {
		limit := float64(fp8.E4M3.Max())
		if strings.HasSuffix(cast.Name, fp8.E5M2.String()) {
			limit = float64(fp8.E5M2.Max())
		}
		share := cast.Amax * cast.Scale / limit
		require.True(t, share > 0.5 && share <= 1, "%s: amax is %v of the format's maximum", cast.Name, share)
	}
}

func TestHealthEndsWithItsContext(t *testing.T) {
	c := small(t, "fp8-smooth")
	c.Train.HealthEvery = 1
	tr := newTrainer(t, c, 2, false)
	steps(t, tr, 1)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := tr.Health(ctx)
	require.ErrorIs(t, err, context.Canceled)
}

// The telemetry of a cast with an outer scale: the scales include it, the values do not
// saturate although scales are rounded, and the format limits the signal-to-noise ratio.
func TestHealthOfNVFP4(t *testing.T) {
	c := small(t, "nvfp4-plain")
	c.Train.HealthEvery = 1
	tr := newTrainer(t, c, 2, false)
	steps(t, tr, 1)
	h, err := tr.Health(context.Background())
	require.NoError(t, err)
	seen := 0
	for _, cast := range h.Casts {
		if !strings.Contains(cast.Name, ".e2m1.") {
			continue
		}
		seen++
		s := cast.Scales
		require.Zero(t, cast.Saturated, cast.Name)
		require.True(t, cast.SQNR > 12 && cast.SQNR < 25, "%s: %v dB", cast.Name, cast.SQNR)
		// The largest block has the largest scale_inv, 448, but for rounding.
		require.InEpsilon(t, 6/cast.Amax, s.Min, 0.07, cast.Name)
		require.InEpsilon(t, 448*6/cast.Amax, 1/s.Outer, 1e-5, cast.Name)
		require.Positive(t, s.Highest, cast.Name)
		require.True(t, s.ZeroBlocks <= s.Lowest && s.Lowest < 1, "%s: %+v", cast.Name, s)
	}
	require.Positive(t, seen)
}
