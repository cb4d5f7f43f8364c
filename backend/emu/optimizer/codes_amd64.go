//go:build !noasm

package optimizer

import "golang.org/x/sys/cpu"

// The instruction sets of the kernels: AVX-512 has all, AVX2 those for extents and for floors.
var (
	haveAVX512 = cpu.X86.HasAVX512F && cpu.X86.HasAVX512BW && cpu.X86.HasAVX512DQ && cpu.X86.HasAVX512VL
	haveAVX2   = haveAVX512 || cpu.X86.HasAVX2 && cpu.X86.HasF16C
)

// In the first three functions n is a positive multiple of 32, and no code may be NaN.

// amaxAVX512 sets lanes to bits whose maxima are the largest magnitudes of the
// new master and moments. largest is the largest code of the old first moments, without
// sign: if it is not finite, lanes are invalid.
//
//go:noescape
func amaxAVX512(c *codes, p *uint16, m, v *uint8, grad *float32, n int, lanes *[3][16]uint32) (largest uint8)

// nearestAVX512 replaces the codes by those of the new values, rounded to nearest.
//
//go:noescape
func nearestAVX512(c *codes, p *uint16, m, v *uint8, grad *float32, n int)

// stochasticAVX512 does the same with stochastic rounding. word is the index of the
// first word of random bits.
//
//go:noescape
func stochasticAVX512(c *codes, p *uint16, m, v *uint8, grad *float32, n int, word uint32)

// extents sets the extents of blocks of codes. It reads codes of the moments
// as the upper bits of F16: the extents of E4M3 are 2^-8 of its values.
func extents(p []uint16, m, v []uint8, blocks int, pMax, mMax, vMax, vMin []float32) {
	if haveAVX512 {
		extentsAVX512(&p[0], &m[0], &v[0], blocks, &pMax[0], &mMax[0], &vMax[0], &vMin[0])
	} else {
		extentsAVX2(&p[0], &m[0], &v[0], blocks, &pMax[0], &mMax[0], &vMax[0], &vMin[0])
	}
}

// floorBytes is floorCodes for the first n of the codes, a multiple of 32, which it returns.
func floorBytes(codes []uint8, x []float32) (n int) {
	if n = len(codes) &^ 31; n == 0 || !haveAVX2 {
		return 0
	}
	floorAVX2(&codes[0], &x[0], n)
	return n
}

//go:noescape
func floorAVX2(codes *uint8, x *float32, n int)

//go:noescape
func extentsAVX512(p *uint16, m, v *uint8, blocks int, pMax, mMax, vMax, vMin *float32)

//go:noescape
func extentsAVX2(p *uint16, m, v *uint8, blocks int, pMax, mMax, vMax, vMin *float32)
