package simd

import (
	"math"
	"testing"
)

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

// upperHalves returns x truncated to BF16, truncated the same values as FP32.
func upperHalves(x []float32) []uint16 {
	codes := make([]uint16, len(x))
	for i, v := range x {
		codes[i] = uint16(math.Float32bits(v) >> 16)
	}
	return codes
}

func truncated(x []float32) []float32 {
	y := make([]float32, len(x))
	for i, code := range upperHalves(x) {
		y[i] = math.Float32frombits(uint32(code) << 16)
	}
	return y
}

func TestNormTwins(t *testing.T) {
	const inv, mean = 0.7, -0.3
	sameKernels(t, 2,
		func(x [][]float32) float32 { return Dot(x[0], x[1]) },
		func(x [][]float32) float32 { return dotGo(x[0], x[1]) })
	sameKernels(t, 2,
		func(x [][]float32) float32 { return DotBF16(upperHalves(x[0]), upperHalves(x[1])) },
		func(x [][]float32) float32 { return dotGo(truncated(x[0]), truncated(x[1])) })
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
