//go:build !noasm

package emu

// rotate has the bits of rotateGo.
func rotate(dst, x, cos, sin []float32, sign float32) {
	half := len(cos)
	switch heads := len(x) / (2 * half); {
	case half%16 != 0 || !haveAVX2:
		rotateGo(dst, x, cos, sin, sign)
	case haveAVX512:
		rotateAVX512(&dst[:len(x)][0], &x[0], &cos[0], &sin[:half][0], heads, half, sign)
	default:
		rotateAVX2(&dst[:len(x)][0], &x[0], &cos[0], &sin[:half][0], heads, half, sign)
	}
}

//go:noescape
func rotateAVX512(dst, x, cos, sin *float32, heads, half int, sign float32)

//go:noescape
func rotateAVX2(dst, x, cos, sin *float32, heads, half int, sign float32)
