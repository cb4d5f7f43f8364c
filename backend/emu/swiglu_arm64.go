//go:build !noasm

package emu

// gatedProduct has the bits of gatedProductGo.
func gatedProduct(dst, up, gate []float32) {
	up, gate = up[:len(dst)], gate[:len(dst)]
	n := wholeVectors(len(dst))
	if n > 0 {
		gatedProductNEON(&dst[0], &up[0], &gate[0], n)
	}
	gatedProductGo(dst[n:], up[n:], gate[n:])
}

// gatedGradient has the bits of gatedGradientGo.
func gatedGradient(du, dg, da, up, gate []float32) {
	dg, da, up, gate = dg[:len(du)], da[:len(du)], up[:len(du)], gate[:len(du)]
	n := wholeVectors(len(du))
	if n > 0 {
		gatedGradientNEON(&du[0], &dg[0], &da[0], &up[0], &gate[0], n)
	}
	gatedGradientGo(du[n:], dg[n:], da[n:], up[n:], gate[n:])
}

//go:noescape
func gatedProductNEON(dst, up, gate *float32, n int)

//go:noescape
func gatedGradientNEON(du, dg, da, up, gate *float32, n int)
