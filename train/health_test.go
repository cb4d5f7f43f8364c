package train

import (
	"context"
	"math"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/fp8"
	"octet/nn"
	"octet/recipe"
)

// Measuring between steps changes no bit of them, under any recipe.
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
				require.Positive(t, cast.Scale, "%s: %s", name, cast.Name)
				require.True(t, cast.Clipped >= 0 && cast.Clipped < 0.5 && cast.Flushed >= 0, "%s: %+v", name, cast)
			}
			require.Empty(t, h.Alarms, name)
		}
	}
}

// The casts that lose most are those whose scale is 1: gradients that are
// flushed.
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

// The scale of a cast is the one that it was made with, also where that comes from
// the tensor itself: half of the format or more is used.
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
		require.True(t, share > 0.5 && share <= 1, "%s: %v of the format", cast.Name, share)
	}
}

// A channel whose rows of up_proj and gate_proj are equal and long raises the
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

// An alarm needs alignment and an outlier, and comes again only when the
// outlier has grown.
func TestAlignmentAlarm(t *testing.T) {
	var w alignmentWatch
	h := SwiGLUHealth{Layer: "layers.5", Channel: 113, Amax: 20, Median: .5, Cosine: .97}
	require.Equal(t, "swiglu alignment rising in layers.5, channel 113: cosine 0.97, |a| 40 x median", w.check(h))
	require.Empty(t, w.check(h), "said already")
	h.Amax = 31
	require.NotEmpty(t, w.check(h))
	h.Cosine = -.97
	h.Channel = 7
	require.NotEmpty(t, w.check(h), "w2 = -w1 makes the same outlier")
	for _, quiet := range []SwiGLUHealth{
		{Layer: "layers.0", Amax: 20, Median: .5, Cosine: .5},
		{Layer: "layers.0", Amax: 4, Median: .5, Cosine: .99},
		{Layer: "layers.0", Amax: math.NaN(), Median: .5, Cosine: .99},
	} {
		require.Empty(t, w.check(quiet))
	}
}
