//go:build !noasm

package emu

// addInto has the bits of addIntoGo.
func addInto(dst, x []float32) {
	x = x[:len(dst)]
	n := wholeVectors(len(dst))
	if n > 0 {
		addIntoNEON(&dst[0], &x[0], n)
	}
	addIntoGo(dst[n:], x[n:])
}

//go:noescape
func addIntoNEON(dst, x *float32, n int)
