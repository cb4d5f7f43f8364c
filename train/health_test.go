package train

import (
	"context"
	"math"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/backend"
	"octet/fp8"
	"octet/nn"
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

// A channel whose rows of up_proj and gate_proj are equal and have a large norm raises an
// alarm.
func TestHealthSeesAnAlignedChannel(t *testing.T) {
	c := small(t, "fp8-smooth")
	c.Train.HealthEvery = 1
	tr := newTrainer(t, c, 2, false)
	const channel = 7
	align := func(p *nn.Param) ([]float32, error) {
		x := p.Init(1)
		if p.Name == "model.layers.1.mlp.up_proj.weight" || p.Name == "model.layers.1.mlp.gate_proj.weight" {
			for i := range c.Model.Dim {
				x[channel*c.Model.Dim+i] = 0.5
			}
		}
		return x, nil
	}
	require.NoError(t, tr.setMasters(align))
	require.NoError(t, tr.prepare(context.Background()))
	steps(t, tr, 1)
	h, err := tr.Health(context.Background())
	require.NoError(t, err)
	require.Equal(t, channel, h.SwiGLU[1].Channel)
	require.Greater(t, h.SwiGLU[1].Cosine, 0.9)
	require.Len(t, h.Alarms, 1)
	require.Contains(t, h.Alarms[0], "layers.1, channel 7")
}

func TestWorstChannel(t *testing.T) {
	amax := []float32{1, 2, 80, 3, 2}
	cosine := []float32{.1, .2, -.97, .3, 0}
	h := worstChannel("layers.5", amax, cosine, []float32{1, 1, 7, 1, 1}, []float32{1, 1, 8, 1, 1})
	require.Equal(t, SwiGLUHealth{
		Layer: "layers.5", Channel: 2, Amax: 80, Median: 2,
		Cosine: float64(float32(-.97)), NormUp: 7, NormGate: 8,
	}, h)
	amax[4] = float32(math.NaN())
	require.Equal(t, 4, worstChannel("layers.5", amax, cosine, cosine, cosine).Channel)
}

// An alarm requires alignment and an outlier, and repeats only after the outlier has
// grown.
func TestAlignmentAlarm(t *testing.T) {
	var w alignmentWatch
	h := SwiGLUHealth{Layer: "layers.5", Channel: 113, Amax: 20, Median: .5, Cosine: .97}
	require.Equal(t, "swiglu alignment rising in layers.5, channel 113: cosine 0.97, |a| 40 x median", w.check(h))
	require.Empty(t, w.check(h), "already reported")
	h.Amax = 31
	require.NotEmpty(t, w.check(h))
	h.Cosine = -.97
	h.Channel = 7
	require.NotEmpty(t, w.check(h), "opposite rows make the same outlier")
	for _, quiet := range []SwiGLUHealth{
		{Layer: "layers.0", Amax: 20, Median: .5, Cosine: .5},
		{Layer: "layers.0", Amax: 4, Median: .5, Cosine: .99},
		{Layer: "layers.0", Amax: math.NaN(), Median: .5, Cosine: .99},
	} {
		require.Empty(t, w.check(quiet))
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
