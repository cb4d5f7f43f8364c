//go:build !noasm

package emu

// dot has the bits of dotGo.
func dot(x, y []float32) float32 {
	var lanes [32]float32
	y = y[:len(x)]
	n := len(x) &^ 31
	if n > 0 {
		dotNEON(&lanes, &x[0], &y[0], n)
	}
	dotLanes(&lanes, x[n:], y[n:])
	return foldSums(&lanes)
}

// gainSums has the bits of gainSumsGo.
func gainSums(dgain, x, dy, gain []float32, inv float32) float32 {
	var lanes [32]float32
	dgain, dy, gain = dgain[:len(x)], dy[:len(x)], gain[:len(x)]
	n := len(x) &^ 31
	if n > 0 {
		gainSumsNEON(&lanes, &dgain[0], &x[0], &dy[0], &gain[0], inv, n)
	}
	gainLanes(&lanes, dgain[n:], x[n:], dy[n:], gain[n:], inv)
	return foldSums(&lanes)
}

// scaleByGain has the bits of scaleByGainGo.
func scaleByGain(dst, x, gain []float32, inv float32) {
	x, gain = x[:len(dst)], gain[:len(dst)]
	n := wholeVectors(len(dst))
	if n > 0 {
		scaleByGainNEON(&dst[0], &x[0], &gain[0], inv, n)
	}
	scaleByGainGo(dst[n:], x[n:], gain[n:], inv)
}

// normGradient has the bits of normGradientGo.
func normGradient(dx, x, dy, gain []float32, inv, mean float32) {
	x, dy, gain = x[:len(dx)], dy[:len(dx)], gain[:len(dx)]
	n := wholeVectors(len(dx))
	if n > 0 {
		normGradientNEON(&dx[0], &x[0], &dy[0], &gain[0], inv, mean, n)
	}
	normGradientGo(dx[n:], x[n:], dy[n:], gain[n:], inv, mean)
}

// The kernels with lanes, which they set, take multiples of 32.

//go:noescape
func dotNEON(lanes *[32]float32, x, y *float32, n int)

//go:noescape
func gainSumsNEON(lanes *[32]float32, dgain, x, dy, gain *float32, inv float32, n int)

//go:noescape
func scaleByGainNEON(dst, x, gain *float32, inv float32, n int)

//go:noescape
func normGradientNEON(dx, x, dy, gain *float32, inv, mean float32, n int)
