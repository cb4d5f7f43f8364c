package simd

// MulSiLU computes dst = up ⊙ silu(gate), with silu(x) = x/(1 + e^−x); dst may be either
// operand.
func MulSiLU(dst, up, gate []float32) {
	up, gate = up[:len(dst)], gate[:len(dst)]
	n := wholeVectors(len(dst))
	if haveVectors && n > 0 {
		mulSiLUVectors(&dst[0], &up[0], &gate[0], n)
	}
	mulSiLUGo(dst[n:], up[n:], gate[n:])
}

//go:noescape
func mulSiLUVectors(dst, up, gate *float32, n int)

func mulSiLUGo(dst, up, gate []float32) {
	up, gate = up[:len(dst)], gate[:len(dst)]
	for i, g := range gate {
		dst[i] = up[i] * (g * sigmoid(g))
	}
}

// MulSiLUGradient computes the gradients du of up and dg of gate, from da, the gradient
// of MulSiLU's result. du and dg may each be one of the operands.
func MulSiLUGradient(du, dg, da, up, gate []float32) {
	dg, da, up, gate = dg[:len(du)], da[:len(du)], up[:len(du)], gate[:len(du)]
	n := wholeVectors(len(du))
	if haveVectors && n > 0 {
		mulSiLUGradientVectors(&du[0], &dg[0], &da[0], &up[0], &gate[0], n)
	}
	mulSiLUGradientGo(du[n:], dg[n:], da[n:], up[n:], gate[n:])
}

//go:noescape
func mulSiLUGradientVectors(du, dg, da, up, gate *float32, n int)

func mulSiLUGradientGo(du, dg, da, up, gate []float32) {
	n := len(du)
	dg, da, up, gate = dg[:n], da[:n], up[:n], gate[:n]
	for i, d := range da {
		g, u := gate[i], up[i]
		s := sigmoid(g)
		du[i] = d * (g * s)
		dg[i] = d * u * (s * (1 + float32(g*(1-s))))
	}
}
