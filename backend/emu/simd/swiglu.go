package simd

// GatedProduct is dst = up ⊙ silu(gate), with silu(x) = x/(1 + e^−x); dst may be
// either.
func GatedProduct(dst, up, gate []float32) {
	up, gate = up[:len(dst)], gate[:len(dst)]
	n := wholeVectors(len(dst))
	if n > 0 {
		gatedProductVectors(&dst[0], &up[0], &gate[0], n)
	}
	gatedProductGo(dst[n:], up[n:], gate[n:])
}

func gatedProductGo(dst, up, gate []float32) {
	up, gate = up[:len(dst)], gate[:len(dst)]
	for i, g := range gate {
		dst[i] = up[i] * (g * sigmoid(g))
	}
}

// GatedGradient is the backward of GatedProduct: the gradients du of up and dg
// of gate, from da, that of the product. du and dg may each be one of the
// operands.
func GatedGradient(du, dg, da, up, gate []float32) {
	dg, da, up, gate = dg[:len(du)], da[:len(du)], up[:len(du)], gate[:len(du)]
	n := wholeVectors(len(du))
	if n > 0 {
		gatedGradientVectors(&du[0], &dg[0], &da[0], &up[0], &gate[0], n)
	}
	gatedGradientGo(du[n:], dg[n:], da[n:], up[n:], gate[n:])
}

func gatedGradientGo(du, dg, da, up, gate []float32) {
	n := len(du)
	dg, da, up, gate = dg[:n], da[:n], up[:n], gate[:n]
	for i, d := range da {
		g, u := gate[i], up[i]
		s := sigmoid(g)
		du[i] = d * (g * s)
		dg[i] = d * u * (s * (1 + float32(g*(1-s))))
	}
}
