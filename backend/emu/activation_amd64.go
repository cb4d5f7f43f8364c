//go:build !noasm

package emu

import "unsafe"

// normalVectors are the normalConstants, each as wide as the widest vector.
var normalVectors = func() (v [33][8]float64) {
	for i, c := range (*[33]float64)(unsafe.Pointer(&normalConstants)) {
		for lane := range v[i] {
			v[i][lane] = c
		}
	}
	return v
}()

// relu has the bits of reluGo.
func relu(dst, x []float32) {
	x = x[:len(dst)]
	n := wholeVectors(len(dst))
	switch {
	case n == 0:
	case haveAVX512:
		reluAVX512(&dst[0], &x[0], n)
	default:
		reluAVX2(&dst[0], &x[0], n)
	}
	reluGo(dst[n:], x[n:])
}

// reluGradient has the bits of reluGradientGo.
func reluGradient(dx, x, dy []float32) {
	x, dy = x[:len(dx)], dy[:len(dx)]
	n := wholeVectors(len(dx))
	switch {
	case n == 0:
	case haveAVX512:
		reluGradientAVX512(&dx[0], &x[0], &dy[0], n)
	default:
		reluGradientAVX2(&dx[0], &x[0], &dy[0], n)
	}
	reluGradientGo(dx[n:], x[n:], dy[n:])
}

// gelu has the bits of geluGo.
func gelu(dst, x []float32) {
	x = x[:len(dst)]
	n := wholeVectors(len(dst))
	switch {
	case n == 0:
	case haveAVX512:
		geluAVX512(&dst[0], &x[0], n, &normalVectors)
	default:
		geluAVX2(&dst[0], &x[0], n, &normalVectors)
	}
	geluGo(dst[n:], x[n:])
}

// geluGradient has the bits of geluGradientGo.
func geluGradient(dx, x, dy []float32) {
	x, dy = x[:len(dx)], dy[:len(dx)]
	n := wholeVectors(len(dx))
	switch {
	case n == 0:
	case haveAVX512:
		geluGradientAVX512(&dx[0], &x[0], &dy[0], n, &normalVectors)
	default:
		geluGradientAVX2(&dx[0], &x[0], &dy[0], n, &normalVectors)
	}
	geluGradientGo(dx[n:], x[n:], dy[n:])
}

//go:noescape
func reluAVX512(dst, x *float32, n int)

//go:noescape
func reluGradientAVX512(dx, x, dy *float32, n int)

//go:noescape
func geluAVX512(dst, x *float32, n int, constants *[33][8]float64)

//go:noescape
func geluGradientAVX512(dx, x, dy *float32, n int, constants *[33][8]float64)

//go:noescape
func reluAVX2(dst, x *float32, n int)

//go:noescape
func reluGradientAVX2(dx, x, dy *float32, n int)

//go:noescape
func geluAVX2(dst, x *float32, n int, constants *[33][8]float64)

//go:noescape
func geluGradientAVX2(dx, x, dy *float32, n int, constants *[33][8]float64)
