package train

import (
	"context"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/nn"
)

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
				x[channel*c.Model.Dim+i] = 2
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

func TestChannels(t *testing.T) {
	amax := []float32{1, 2, 80, 3, 2}
	cosine := []float32{.1, .2, -.97, .7, 0}
	h := swiGLUHealth("layers.5", amax, cosine, []float32{1, 1, 7, 1, 1}, []float32{1, 1, 8, 1, 1})
	require.InDelta(t, (.1+.2+.97+.7)/5, h.CosineMean, 1e-7)
	require.InDelta(t, math.Sqrt((1+4+9+4)/4.), h.OthersRMS, 1e-12)
	require.InDelta(t, 0.4, h.Aligned, 1e-12)
	// Ranks of the maxima 0, 1.5, 4, 3, 1.5 and of the cosines 1, 2, 4, 3, 0.
	require.InDelta(t, 8/math.Sqrt(9.5*10), h.Correlation, 1e-12)
	h.CosineMean, h.OthersRMS, h.Aligned, h.Correlation = 0, 0, 0, 0
	require.Equal(t, SwiGLUHealth{
		Layer: "layers.5", Channel: 2, Amax: 80, Median: 2,
		Cosine: float64(float32(-.97)), NormUp: 7, NormGate: 8,
	}, h)
	amax[4] = float32(math.NaN())
	require.Equal(t, 4, swiGLUHealth("layers.5", amax, cosine, cosine, cosine).Channel)
}

// An alarm requires an outlier, and repeats only after the outlier has grown.
func TestOutlierAlarm(t *testing.T) {
	var w outlierWatch
	h := SwiGLUHealth{Layer: "layers.5", Channel: 113, Amax: 200, OthersRMS: .5, Cosine: .97}
	require.Equal(t, "swiglu outlier in layers.5, channel 113: |a| 400 x rms of the others, cosine 0.97", w.check(h))
	require.Empty(t, w.check(h), "already reported")
	h.Amax = 310
	require.NotEmpty(t, w.check(h))
	h.Channel, h.Cosine = 7, 0
	require.NotEmpty(t, w.check(h), "unaligned rows make the same outlier")
	alone := SwiGLUHealth{Layer: "layers.2", Amax: 3}
	require.NotEmpty(t, w.check(alone))
	require.Empty(t, w.check(alone), "all others are 0")
	for _, quiet := range []SwiGLUHealth{
		{Layer: "layers.0", Amax: 49, OthersRMS: .5, Cosine: .99},
		{Layer: "layers.0", Amax: 4, OthersRMS: .5, Median: 1e-6, Cosine: .99},
		{Layer: "layers.0", Amax: math.NaN(), OthersRMS: .5},
		{Layer: "layers.0", Amax: 3, OthersRMS: math.NaN()},
		{Layer: "layers.0"},
	} {
		require.Empty(t, w.check(quiet))
	}
}

// Layers without other channels, and with several that are not finite.
func TestChannelsAtTheEdge(t *testing.T) {
	one := swiGLUHealth("layers.0", []float32{3}, []float32{1}, []float32{1}, []float32{1})
	require.Equal(t, 3.0, one.Amax)
	require.True(t, math.IsNaN(one.OthersRMS) && math.IsNaN(one.Correlation))
	var w outlierWatch
	require.Empty(t, w.check(one))
	inf, nan := float32(math.Inf(1)), float32(math.NaN())
	h := swiGLUHealth("layers.0", []float32{1, inf, 2}, []float32{0, 0, 0}, []float32{1, 1, 1}, []float32{1, 1, 1})
	require.Equal(t, 1, h.Channel)
	require.NotEmpty(t, w.check(h), "an infinite channel")
	require.Empty(t, w.check(swiGLUHealth("layers.1", []float32{nan, 1, nan}, []float32{0, 0, 0}, []float32{1, 1, 1}, []float32{1, 1, 1})))
}
