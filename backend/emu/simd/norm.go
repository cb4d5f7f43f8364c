package simd

import "math"

// The parts of RMSNorm and of its backward, for one row.

// Dot returns Σ x·y, in 32 lanes. x gives the length.
func Dot(x, y []float32) float32 {
	var lanes [32]float32
	y = y[:len(x)]
	n := wholeVectors(len(x)) &^ 31
	if haveVectors && n > 0 {
		sum := dotLanesVectors(&lanes, &x[0], &y[0], n)
		if n == len(x) {
			return sum
		}
	}
	dotLanesGo(&lanes, x[n:], y[n:])
	return fold(lanes[:])
}

// DotBF16 is Dot of BF16 values.
func DotBF16(x, y []uint16) float32 {
	var lanes [32]float32
	y = y[:len(x)]
	n := wholeVectors(len(x)) &^ 31
	if haveVectors && n > 0 {
		sum := dotLanesBF16Vectors(&lanes, &x[0], &y[0], n)
		if n == len(x) {
			return sum
		}
	}
	dotLanesBF16Go(&lanes, x[n:], y[n:])
	return fold(lanes[:])
}

//go:noescape
func dotLanesVectors(lanes *[32]float32, x, y *float32, n int) float32

//go:noescape
func dotLanesBF16Vectors(lanes *[32]float32, x, y *uint16, n int) float32

// dotLanesGo is Dot without the sum of the lanes.
func dotLanesGo(lanes *[32]float32, x, y []float32) {
	y = y[:len(x)]
	for i, v := range x {
		lanes[i%32] += float32(v * y[i])
	}
}

// dotLanesBF16Go is DotBF16 without the sum of the lanes.
func dotLanesBF16Go(lanes *[32]float32, x, y []uint16) {
	y = y[:len(x)]
	for i, v := range x {
		lanes[i%32] += float32(math.Float32frombits(uint32(v)<<16) * math.Float32frombits(uint32(y[i])<<16))
	}
}

// ScaleByGain computes dst = (x·inv) ⊙ gain, an RMSNorm with inv = 1/rms(x); dst may be
// either operand.
func ScaleByGain(dst, x, gain []float32, inv float32) {
	x, gain = x[:len(dst)], gain[:len(dst)]
	n := wholeVectors(len(dst))
	if haveVectors && n > 0 {
		scaleByGainVectors(&dst[0], &x[0], &gain[0], inv, n)
	}
	scaleByGainGo(dst[n:], x[n:], gain[n:], inv)
}

//go:noescape
func scaleByGainVectors(dst, x, gain *float32, inv float32, n int)

func scaleByGainGo(dst, x, gain []float32, inv float32) {
	x, gain = x[:len(dst)], gain[:len(dst)]
	for i := range dst {
		dst[i] = float32(x[i]*inv) * gain[i]
	}
}

// GainSums adds dy ⊙ x̂ to dgain and returns Σ g·x̂, in 32 lanes, with x̂ = x·inv
// and g = dy ⊙ gain. x gives the length.
func GainSums(dgain, x, dy, gain []float32, inv float32) float32 {
	var lanes [32]float32
	dgain, dy, gain = dgain[:len(x)], dy[:len(x)], gain[:len(x)]
	n := wholeVectors(len(x)) &^ 31
	if haveVectors && n > 0 {
		sum := gainLanesVectors(&lanes, &dgain[0], &x[0], &dy[0], &gain[0], inv, n)
		if n == len(x) {
			return sum
		}
	}
	gainLanesGo(&lanes, dgain[n:], x[n:], dy[n:], gain[n:], inv)
	return fold(lanes[:])
}

//go:noescape
func gainLanesVectors(lanes *[32]float32, dgain, x, dy, gain *float32, inv float32, n int) float32

// gainLanesGo is GainSums without the sum of the lanes.
func gainLanesGo(lanes *[32]float32, dgain, x, dy, gain []float32, inv float32) {
	n := len(x)
	dgain, dy, gain = dgain[:n], dy[:n], gain[:n]
	for i, v := range x {
		h := float32(v * inv)
		dgain[i] += float32(dy[i] * h)
		lanes[i%32] += float32(float32(dy[i]*gain[i]) * h)
	}
}

// NormGradient computes dx = inv·(g − x̂·mean), with x̂ and g as in GainSums; mean is the
// result of GainSums divided by the length of the row. dx may be any operand.
func NormGradient(dx, x, dy, gain []float32, inv, mean float32) {
	x, dy, gain = x[:len(dx)], dy[:len(dx)], gain[:len(dx)]
	n := wholeVectors(len(dx))
	if haveVectors && n > 0 {
		normGradientVectors(&dx[0], &x[0], &dy[0], &gain[0], inv, mean, n)
	}
	normGradientGo(dx[n:], x[n:], dy[n:], gain[n:], inv, mean)
}

//go:noescape
func normGradientVectors(dx, x, dy, gain *float32, inv, mean float32, n int)

func normGradientGo(dx, x, dy, gain []float32, inv, mean float32) {
	n := len(dx)
	x, dy, gain = x[:n], dy[:n], gain[:n]
	for i, v := range x {
		dx[i] = inv * (float32(dy[i]*gain[i]) - float32(float32(v*inv)*mean))
	}
}
