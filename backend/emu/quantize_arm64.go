//go:build !noasm

package emu

// multiply has the bits of multiplyEachGo.
func multiply(dst, x, y []float32) {
	x, y = x[:len(dst)], y[:len(dst)]
	n := wholeVectors(len(dst))
	if n > 0 {
		multiplyNEON(&dst[0], &x[0], &y[0], n)
	}
	multiplyEachGo(dst[n:], x[n:], y[n:])
}

// scaleBy has the bits of scaleByGo.
func scaleBy(x []float32, factor float32) {
	n := wholeVectors(len(x))
	if n > 0 {
		scaleByNEON(&x[0], n, factor)
	}
	scaleByGo(x[n:], factor)
}

// maxMagnitudes has the bits of maxMagnitudesGo, those of NaN too.
func maxMagnitudes(dst, x []float32) {
	dst = dst[:len(x)]
	n := wholeVectors(len(x))
	if n > 0 {
		maxMagnitudesNEON(&dst[0], &x[0], n)
	}
	maxMagnitudesGo(dst[n:], x[n:])
}

// In all of these n is positive and a multiple of 16.

//go:noescape
func multiplyNEON(dst, x, y *float32, n int)

//go:noescape
func scaleByNEON(x *float32, n int, factor float32)

//go:noescape
func maxMagnitudesNEON(dst, x *float32, n int)
