//go:build !noasm

package emu

// addInto has the bits of addIntoGo.
func addInto(dst, x []float32) {
	x = x[:len(dst)]
	n := wholeVectors(len(dst))
	switch {
	case n == 0:
	case haveAVX512:
		addIntoAVX512(&dst[0], &x[0], n)
	default:
		addIntoAVX2(&dst[0], &x[0], n)
	}
	addIntoGo(dst[n:], x[n:])
}

//go:noescape
func addIntoAVX512(dst, x *float32, n int)

//go:noescape
func addIntoAVX2(dst, x *float32, n int)
