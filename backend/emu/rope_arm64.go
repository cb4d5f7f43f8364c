//go:build !noasm

package emu

// rotate has the bits of rotateGo.
func rotate(dst, x, cos, sin []float32, sign float32) {
	half := len(cos)
	heads := len(x) / (2 * half)
	if half%4 != 0 || heads == 0 {
		rotateGo(dst, x, cos, sin, sign)
		return
	}
	rotateNEON(&dst[:len(x)][0], &x[0], &cos[0], &sin[:half][0], heads, half, sign)
}

// rotateNEON takes halves that are multiples of 4.
//
//go:noescape
func rotateNEON(dst, x, cos, sin *float32, heads, half int, sign float32)
