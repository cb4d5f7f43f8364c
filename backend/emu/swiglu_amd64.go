//go:build !noasm

package emu

// gatedProduct has the bits of gatedProductGo.
func gatedProduct(dst, up, gate []float32) {
	up, gate = up[:len(dst)], gate[:len(dst)]
	n := wholeVectors(len(dst))
	switch {
	case n == 0:
	case haveAVX512:
		gatedProductAVX512(&dst[0], &up[0], &gate[0], n)
	default:
		gatedProductAVX2(&dst[0], &up[0], &gate[0], n)
	}
	gatedProductGo(dst[n:], up[n:], gate[n:])
}

// gatedGradient has the bits of gatedGradientGo.
func gatedGradient(du, dg, da, up, gate []float32) {
	dg, da, up, gate = dg[:len(du)], da[:len(du)], up[:len(du)], gate[:len(du)]
	n := wholeVectors(len(du))
	switch {
	case n == 0:
	case haveAVX512:
		gatedGradientAVX512(&du[0], &dg[0], &da[0], &up[0], &gate[0], n)
	default:
		gatedGradientAVX2(&du[0], &dg[0], &da[0], &up[0], &gate[0], n)
	}
	gatedGradientGo(du[n:], dg[n:], da[n:], up[n:], gate[n:])
}

//go:noescape
func gatedProductAVX512(dst, up, gate *float32, n int)

//go:noescape
func gatedProductAVX2(dst, up, gate *float32, n int)

//go:noescape
func gatedGradientAVX512(du, dg, da, up, gate *float32, n int)

//go:noescape
func gatedGradientAVX2(du, dg, da, up, gate *float32, n int)
