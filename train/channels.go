package train

import (
	"fmt"
	"math"
	"slices"

	"octet/internal/stats"
)

// SwiGLUHealth describes the channels of a layer's MLP, and the one with the largest
// activation, which can become the outlier that breaks FP8 (method.md).
type SwiGLUHealth struct {
	Layer            string // "layers.3"
	Channel          int    // with the largest maximum of |a|; the next five fields are about it
	Amax             float64
	Cosine           float64 // of the angle between its rows of up_proj and gate_proj
	NormUp, NormGate float64 // norms of these rows
	OthersRMS        float64 // root mean square of the other channels' maxima of |a|

	Median      float64 // of all channels' maxima
	CosineMean  float64 // mean over the channels of the cosine's magnitude
	Aligned     float64 // share of the channels whose cosine is above 0.5 in magnitude
	Correlation float64 // rank correlation (Spearman) of the cosine's magnitude and the maximum
}

func (t *Trainer) channelHealth() (list []SwiGLUHealth, err error) {
	if t.health.Channels == nil {
		return nil, nil
	}
	x, err := t.localFloats(t.health.Channels)
	if err != nil {
		return nil, err
	}
	ffn := t.health.Channels.Cols()
	for i, layer := range t.health.Layers {
		row := func(k int) []float32 { return x[(4*i+k)*ffn:][:ffn] }
		list = append(list, swiGLUHealth(layer, row(0), row(1), row(2), row(3)))
	}
	return list, nil
}

// swiGLUHealth describes a layer from its channels' maxima, cosines and norms, each [ffn].
// NaN counts as the largest maximum.
func swiGLUHealth(layer string, amax, cosine, up, gate []float32) SwiGLUHealth {
	worst := 0
	for i, a := range amax {
		if a > amax[worst] || a != a {
			worst = i
		}
	}
	h := SwiGLUHealth{
		Layer: layer, Channel: worst, Amax: float64(amax[worst]),
		Cosine: float64(cosine[worst]), NormUp: float64(up[worst]), NormGate: float64(gate[worst]),
	}
	maxima, cosines := make([]float64, len(amax)), make([]float64, len(amax))
	aligned, squares := 0, 0.0
	for i, a := range amax {
		maxima[i], cosines[i] = float64(a), math.Abs(float64(cosine[i]))
		if i != worst {
			squares += maxima[i] * maxima[i]
		}
		if cosines[i] > 0.5 {
			aligned++
		}
	}
	h.OthersRMS = math.Sqrt(squares / float64(len(amax)-1)) // NaN without other channels
	h.CosineMean, h.Aligned = stats.Mean(cosines), float64(aligned)/float64(len(amax))
	h.Correlation = stats.RankCorrelation(cosines, maxima)
	slices.Sort(maxima)
	h.Median = maxima[len(maxima)/2]
	return h
}

// OutlierRatio is how many times a channel's maximum exceeds the rms of the other channels' before
// Health warns. FP8 with per-tensor scales begins to lose at some thousand. Without an outlier the
// ratio stays below 50, also where weight decay has silenced most channels (docs/evidence.md). The
// angle of the rows does not matter: unaligned rows grow with the square of the input, too.
const OutlierRatio = 100

// outlierWatch stores the reported ratios, so that a channel is reported again only when its ratio
// has grown by half.
type outlierWatch struct{ reported map[string]float64 }

// check returns the alarm's line, or "".
func (w *outlierWatch) check(h SwiGLUHealth) string {
	ratio := h.Amax / h.OthersRMS
	if !(ratio >= OutlierRatio) {
		return ""
	}
	key := fmt.Sprintf("%s/%d", h.Layer, h.Channel)
	if !(ratio > 1.5*w.reported[key]) { // also if both are infinite, because the others are 0
		return ""
	}
	if w.reported == nil {
		w.reported = map[string]float64{}
	}
	w.reported[key] = ratio
	return fmt.Sprintf("swiglu outlier in %s, channel %d: |a| %.4g x rms of the others, cosine %.2f", h.Layer, h.Channel, ratio, h.Cosine)
}
