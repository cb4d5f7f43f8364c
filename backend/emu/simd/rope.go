package simd

// Rotate sets dst to x with the pairs (i, i+half) of each head rotated by angle i. half,
// at least 1, is the number of cosines and of sines; a head has 2·half elements, and x
// holds whole heads. With sign -1 it rotates back. x gives the length; dst may be x.
func Rotate(dst, x, cos, sin []float32, sign float32) {
	half := len(cos)
	dst, sin = dst[:len(x)], sin[:half]
	if heads := len(x) / (2 * half); haveVectors && heads > 0 && half%16 == 0 {
		rotateVectors(&dst[0], &x[0], &cos[0], &sin[0], heads, half, sign)
	} else {
		rotateGo(dst, x, cos, sin, sign)
	}
}

//go:noescape
func rotateVectors(dst, x, cos, sin *float32, heads, half int, sign float32)

func rotateGo(dst, x, cos, sin []float32, sign float32) {
	half := len(cos)
	sin = sin[:half]
	for ; len(x) >= 2*half; dst, x = dst[2*half:], x[2*half:] {
		x0, x1, d0, d1 := x[:half], x[half:2*half], dst[:half], dst[half:2*half]
		for i, a := range x0 {
			b, c, s := x1[i], cos[i], sign*sin[i]
			d0[i] = float32(a*c) - float32(b*s)
			d1[i] = float32(b*c) + float32(a*s)
		}
	}
}
