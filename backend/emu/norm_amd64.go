//go:build !noasm

package emu

// dot has the bits of dotGo.
func dot(x, y []float32) float32 {
	var lanes [32]float32
	var sum float32
	y = y[:len(x)]
	n := wholeSums(len(x))
	switch {
	case n == 0:
	case haveAVX512:
		sum = dotAVX512(&lanes, &x[0], &y[0], n)
	default:
		sum = dotAVX2(&lanes, &x[0], &y[0], n)
	}
	if n == len(x) {
		return sum
	}
	dotLanes(&lanes, x[n:], y[n:])
	return foldSums(&lanes)
}

// gainSums has the bits of gainSumsGo.
func gainSums(dgain, x, dy, gain []float32, inv float32) float32 {
	var lanes [32]float32
	var sum float32
	dgain, dy, gain = dgain[:len(x)], dy[:len(x)], gain[:len(x)]
	n := wholeSums(len(x))
	switch {
	case n == 0:
	case haveAVX512:
		sum = gainSumsAVX512(&lanes, &dgain[0], &x[0], &dy[0], &gain[0], inv, n)
	default:
		sum = gainSumsAVX2(&lanes, &dgain[0], &x[0], &dy[0], &gain[0], inv, n)
	}
	if n == len(x) {
		return sum
	}
	gainLanes(&lanes, dgain[n:], x[n:], dy[n:], gain[n:], inv)
	return foldSums(&lanes)
}

// wholeSums is wholeVectors for kernels that add up in 32 lanes.
func wholeSums(n int) int { return wholeVectors(n) &^ 31 }

// scaleByGain has the bits of scaleByGainGo.
func scaleByGain(dst, x, gain []float32, inv float32) {
	x, gain = x[:len(dst)], gain[:len(dst)]
	n := wholeVectors(len(dst))
	switch {
	case n == 0:
	case haveAVX512:
		scaleByGainAVX512(&dst[0], &x[0], &gain[0], inv, n)
	default:
		scaleByGainAVX2(&dst[0], &x[0], &gain[0], inv, n)
	}
	scaleByGainGo(dst[n:], x[n:], gain[n:], inv)
}

// normGradient has the bits of normGradientGo.
func normGradient(dx, x, dy, gain []float32, inv, mean float32) {
	x, dy, gain = x[:len(dx)], dy[:len(dx)], gain[:len(dx)]
	n := wholeVectors(len(dx))
	switch {
	case n == 0:
	case haveAVX512:
		normGradientAVX512(&dx[0], &x[0], &dy[0], &gain[0], inv, mean, n)
	default:
		normGradientAVX2(&dx[0], &x[0], &dy[0], &gain[0], inv, mean, n)
	}
	normGradientGo(dx[n:], x[n:], dy[n:], gain[n:], inv, mean)
}

// The kernels with lanes take multiples of 32. They leave the lanes' sums for a
// rest to be added, and return what it all adds up to without one.

//go:noescape
func dotAVX512(lanes *[32]float32, x, y *float32, n int) float32

//go:noescape
func dotAVX2(lanes *[32]float32, x, y *float32, n int) float32

//go:noescape
func gainSumsAVX512(lanes *[32]float32, dgain, x, dy, gain *float32, inv float32, n int) float32

//go:noescape
func gainSumsAVX2(lanes *[32]float32, dgain, x, dy, gain *float32, inv float32, n int) float32

//go:noescape
func scaleByGainAVX512(dst, x, gain *float32, inv float32, n int)

//go:noescape
func scaleByGainAVX2(dst, x, gain *float32, inv float32, n int)

//go:noescape
func normGradientAVX512(dx, x, dy, gain *float32, inv, mean float32, n int)

//go:noescape
func normGradientAVX2(dx, x, dy, gain *float32, inv, mean float32, n int)
