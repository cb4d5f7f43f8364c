package simd

import "testing"

// dotGo and gainSumsGo are the twins of Dot and GainSums.
func dotGo(x, y []float32) float32 {
	var lanes [32]float32
	dotLanesGo(&lanes, x, y)
	return fold(lanes[:])
}

func gainSumsGo(dgain, x, dy, gain []float32, inv float32) float32 {
	var lanes [32]float32
	gainLanesGo(&lanes, dgain, x, dy, gain, inv)
	return fold(lanes[:])
}

func TestNormTwins(t *testing.T) {
	const inv, mean = 0.7, -0.3
	sameKernels(t, 2,
		func(x [][]float32) float32 { return Dot(x[0], x[1]) },
		func(x [][]float32) float32 { return dotGo(x[0], x[1]) })
	sameKernels(t, 3,
		func(x [][]float32) float32 { ScaleByGain(x[0], x[1], x[2], inv); return 0 },
		func(x [][]float32) float32 { scaleByGainGo(x[0], x[1], x[2], inv); return 0 })
	sameKernels(t, 4,
		func(x [][]float32) float32 { return GainSums(x[0], x[1], x[2], x[3], inv) },
		func(x [][]float32) float32 { return gainSumsGo(x[0], x[1], x[2], x[3], inv) })
	sameKernels(t, 4,
		func(x [][]float32) float32 { NormGradient(x[0], x[1], x[2], x[3], inv, mean); return 0 },
		func(x [][]float32) float32 { normGradientGo(x[0], x[1], x[2], x[3], inv, mean); return 0 })
}
