package simd

import "testing"

func TestAdamWTwins(t *testing.T) {
	rule := AdamW{
		Coef: 0.5, Beta1: 0.9, Rest1: 0.1, Beta2: 0.95, Rest2: 0.05, Decay: 0.999, Rate: 0.01, RootFactor: 1.2, Epsilon: 1e-8,
	}
	for i := range 3 {
		sameKernels(t, 4,
			func(x [][]float32) float32 { return rule.Update(x[0], x[1], x[2], x[3])[i] },
			func(x [][]float32) float32 { return rule.updateGo(x[0], x[1], x[2], x[3])[i] })
	}
}
