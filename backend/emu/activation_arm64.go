//go:build !noasm

package emu

// relu has the bits of reluGo.
func relu(dst, x []float32) {
	x = x[:len(dst)]
	n := wholeVectors(len(dst))
	if n > 0 {
		reluNEON(&dst[0], &x[0], n)
	}
	reluGo(dst[n:], x[n:])
}

// reluGradient has the bits of reluGradientGo.
func reluGradient(dx, x, dy []float32) {
	x, dy = x[:len(dx)], dy[:len(dx)]
	n := wholeVectors(len(dx))
	if n > 0 {
		reluGradientNEON(&dx[0], &x[0], &dy[0], n)
	}
	reluGradientGo(dx[n:], x[n:], dy[n:])
}

// gelu has the bits of geluGo.
func gelu(dst, x []float32) {
	x = x[:len(dst)]
	n := wholeVectors(len(dst))
	if n > 0 {
		geluNEON(&dst[0], &x[0], n, &normalConstants)
	}
	geluGo(dst[n:], x[n:])
}

// geluGradient has the bits of geluGradientGo.
func geluGradient(dx, x, dy []float32) {
	x, dy = x[:len(dx)], dy[:len(dx)]
	n := wholeVectors(len(dx))
	if n > 0 {
		geluGradientNEON(&dx[0], &x[0], &dy[0], n, &normalConstants)
	}
	geluGradientGo(dx[n:], x[n:], dy[n:])
}

//go:noescape
func reluNEON(dst, x *float32, n int)

//go:noescape
func reluGradientNEON(dx, x, dy *float32, n int)

//go:noescape
func geluNEON(dst, x *float32, n int, constants *normalTable)

//go:noescape
func geluGradientNEON(dx, x, dy *float32, n int, constants *normalTable)
