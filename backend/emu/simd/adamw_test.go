package simd

import (
	"math"
	"testing"
)

func TestAdamWTwins(t *testing.T) {
	rule := AdamW{
		Coef: 0.5, Beta1: 0.9, Rest1: 0.1, Beta2: 0.95, Rest2: 0.05, Decay: 0.999, Rate: 0.01, RootScale: 1.2, Epsilon: 1e-8,
	}
	for i := range 6 {
		rule.Keep = []uint32{KeepAll, KeepNormal}[i%2]
		sameKernels(t, 4,
			func(x [][]float32) float32 { return rule.Update(x[0], x[1], x[2], x[3])[i/2] },
			func(x [][]float32) float32 { return rule.updateGo(x[0], x[1], x[2], x[3])[i/2] })
	}
}

// Without gradient, KeepNormal flushes small moments to zero before they become
// subnormal; NaN stays.
func TestAdamWFlushesSmallMoments(t *testing.T) {
	eachInstructionSet(t, func(t *testing.T) {
		rule := AdamW{Coef: 1, Beta1: 0.9, Rest1: 0.1, Beta2: 0.95, Rest2: 0.05, Decay: 1, Rate: 0.01, RootScale: 1, Epsilon: 1e-8, Keep: KeepNormal}
		nan := float32(math.NaN())
		for _, c := range []struct{ m, v, wantM, wantV float32 }{
			{0x1p-110, 0x1p-110, 0x1p-110 * 0.9, 0x1p-110 * 0.95},
			{0x1p-111, 0x1p-111, 0, 0},
			{-0x1p-111, 0x1p-149, 0, 0},
			{-0x1p-110, 0x1p-110, -0x1p-110 * 0.9, 0x1p-110 * 0.95},
			{nan, nan, nan, nan},
		} {
			p, m, v, grad := make([]float32, 37), make([]float32, 37), make([]float32, 37), make([]float32, 37)
			for i := range m {
				m[i], v[i] = c.m, c.v
			}
			rule.Update(p, m, v, grad)
			for i := range m {
				sameFloats(t, []float32{c.wantM, c.wantV}, []float32{m[i], v[i]}, "moments")
			}
		}
	})
}
