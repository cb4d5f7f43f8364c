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

// An alarm requires an outlier, aligned unless it is very large, and repeats only after the outlier
// has grown.
func TestOutlierAlarm(t *testing.T) {
	var w outlierWatch
	h := SwiGLUHealth{Layer: "layers.5", Channel: 113, Amax: 20, OthersRMS: .5, Cosine: .97}
	require.Equal(t, "swiglu outlier in layers.5, channel 113: |a| 40 x rms of the others, cosine 0.97", w.check(h))
	require.Empty(t, w.check(h), "already reported")
	h.Amax = 31
	require.NotEmpty(t, w.check(h))
	h.Cosine = -.97
	h.Channel = 7
	require.NotEmpty(t, w.check(h), "opposite rows make the same outlier")
	require.NotEmpty(t, w.check(SwiGLUHealth{Layer: "layers.1", Amax: 51, OthersRMS: .5, Cosine: .1}), "so do unaligned rows, if they are long")
	alone := SwiGLUHealth{Layer: "layers.2", Amax: 3}
	require.NotEmpty(t, w.check(alone))
	require.Empty(t, w.check(alone), "all others are 0")
	for _, quiet := range []SwiGLUHealth{
		{Layer: "layers.0", Amax: 20, OthersRMS: .5, Cosine: .4},
		{Layer: "layers.0", Amax: 4, OthersRMS: .5, Cosine: .99},
		{Layer: "layers.0", Amax: 4, OthersRMS: .5, Median: 1e-6, Cosine: .99},
		{Layer: "layers.0", Amax: math.NaN(), OthersRMS: .5, Cosine: .99},
		{Layer: "layers.0", Amax: 0, OthersRMS: 0, Cosine: 0},
	} {
		require.Empty(t, w.check(quiet))
	}
}
