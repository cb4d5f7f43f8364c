package simd

// Ungated activations. GELU is the exact one, by Φ, not the approximation by tanh.

// ReLU computes dst = max(x, 0); NaN stays NaN; dst may be x.
func ReLU(dst, x []float32) {
	x = x[:len(dst)]
	n := wholeVectors(len(dst))
	if haveVectors && n > 0 {
		reluVectors(&dst[0], &x[0], n)
	}
	reluGo(dst[n:], x[n:])
}

//go:noescape
func reluVectors(dst, x *float32, n int)

func reluGo(dst, x []float32) {
	for i, v := range x[:len(dst)] {
		if v < 0 { // false for NaN
			v = 0
		}
		dst[i] = v
	}
}

// ReLUGradient computes dx = dy where x > 0 or x is NaN, and 0 elsewhere; dx may be
// either operand.
func ReLUGradient(dx, x, dy []float32) {
	x, dy = x[:len(dx)], dy[:len(dx)]
	n := wholeVectors(len(dx))
	if haveVectors && n > 0 {
		reluGradientVectors(&dx[0], &x[0], &dy[0], n)
	}
	reluGradientGo(dx[n:], x[n:], dy[n:])
}

//go:noescape
func reluGradientVectors(dx, x, dy *float32, n int)

func reluGradientGo(dx, x, dy []float32) {
	for i, v := range x[:len(dx)] {
		d := dy[i]
		if v <= 0 {
			d = 0
		}
		dx[i] = d
	}
}
