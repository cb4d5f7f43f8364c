package ptq

import (
	"context"
	"math"
	"slices"
)

// smooth chooses SmoothQuant's scales, s_j = max|X_j|^α / max|W_j|^(1-α) for channel j of an
// input X, over all weights W that read it. X becomes X_j/s_j and W becomes W_j·s_j, which
// computes the same: the rows of what computes X are divided by s, exactly for a norm's gain
// and for up_proj, in which down_proj's input is linear.
func (m *Model) smooth(ctx context.Context, o Options) error {
	var inputs [][]float32
	var layers []int
	for layer := range m.source.Config.NumHiddenLayers {
		layers = append(layers, layer)
		for _, r := range readers {
			inputs = append(inputs, make([]float32, m.shapes[paramName(layer, r.weights[0])][1]))
		}
	}
	err := m.observe(ctx, o, layers, func(layer, reader int, x []float32) {
		columnMax(inputs[layer*len(readers)+reader], x)
	})
	if err != nil {
		return err
	}
	for i, x := range slices.Backward(inputs) { // down_proj's scales divide up_proj first
		layer, r := i/len(readers), readers[i%len(readers)]
		if r.source == "" {
			continue
		}
		w := make([]float32, len(x))
		for _, module := range r.weights {
			values, err := m.smoothed(paramName(layer, module))
			if err != nil {
				return err
			}
			columnMax(w, values)
		}
		s := smoothing(x, w, m.Scheme.Smooth)
		m.divide[paramName(layer, r.source)] = s
		for _, module := range r.weights {
			m.multiply[paramName(layer, module)] = s
		}
	}
	return nil
}

// smoothing returns max|X_j|^α / max|W_j|^(1-α) for each channel, and 1 where that is 0, not
// finite or near FP32's limits.
func smoothing(x, w []float32, alpha float64) []float32 {
	s := make([]float32, len(x))
	for j := range s {
		s[j] = float32(math.Pow(float64(x[j]), alpha) / math.Pow(float64(w[j]), 1-alpha))
		if !(s[j] >= 0x1p-126 && s[j] <= 0x1p126) {
			s[j] = 1
		}
	}
	return s
}

// columnMax raises most to the largest magnitudes of the columns of x.
func columnMax(most, x []float32) {
	for i, v := range x {
		j := i % len(most)
		most[j] = max(most[j], v, -v)
	}
}
