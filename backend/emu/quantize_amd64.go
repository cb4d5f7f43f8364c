//go:build !noasm

package emu

// multiply has the bits of multiplyEachGo.
func multiply(dst, x, y []float32) {
	x, y = x[:len(dst)], y[:len(dst)]
	n := wholeVectors(len(dst))
	switch {
	case n == 0:
	case haveAVX512:
		multiplyAVX512(&dst[0], &x[0], &y[0], n)
	default:
		multiplyAVX2(&dst[0], &x[0], &y[0], n)
	}
	multiplyEachGo(dst[n:], x[n:], y[n:])
}

// scaleBy has the bits of scaleByGo.
func scaleBy(x []float32, factor float32) {
	n := wholeVectors(len(x))
	switch {
	case n == 0:
	case haveAVX512:
		scaleByAVX512(&x[0], n, factor)
	default:
		scaleByAVX2(&x[0], n, factor)
	}
	scaleByGo(x[n:], factor)
}

// maxMagnitudes has the bits of maxMagnitudesGo, those of NaN too.
func maxMagnitudes(dst, x []float32) {
	dst = dst[:len(x)]
	n := wholeVectors(len(x))
	switch {
	case n == 0:
	case haveAVX512:
		maxMagnitudesAVX512(&dst[0], &x[0], n)
	default:
		maxMagnitudesAVX2(&dst[0], &x[0], n)
	}
	maxMagnitudesGo(dst[n:], x[n:])
}

// In all of these n is positive and a multiple of 16.

//go:noescape
func multiplyAVX512(dst, x, y *float32, n int)

//go:noescape
func scaleByAVX512(x *float32, n int, factor float32)

//go:noescape
func maxMagnitudesAVX512(dst, x *float32, n int)

//go:noescape
func multiplyAVX2(dst, x, y *float32, n int)

//go:noescape
func scaleByAVX2(x *float32, n int, factor float32)

//go:noescape
func maxMagnitudesAVX2(dst, x *float32, n int)
