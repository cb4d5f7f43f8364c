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
