//go:build !noasm

package fp8

import (
	"math"
	"unsafe"

	"golang.org/x/sys/cpu"
)

var (
	haveAVX512 = cpu.X86.HasAVX512F && cpu.X86.HasAVX512BW && cpu.X86.HasAVX512DQ && cpu.X86.HasAVX512VL
	haveAVX2   = cpu.X86.HasAVX2 && cpu.X86.HasF16C
)

// vectorLen returns how many of n elements the assembly casts: a multiple of 16,
// because it has no masks; 0 without AVX2 and AVX-512.
func vectorLen(n int) int {
	if !haveAVX2 && !haveAVX512 {
		return 0
	}
	return n &^ 15
}

// vector is one constant, repeated in all lanes of a 256-bit vector.
type vector [8]uint32

func splat(x uint32) (v vector) {
	for i := range v {
		v[i] = x
	}
	return v
}

// castVectors holds the constants of rounding to nearest in one format.
type castVectors struct {
	abs, inf, one                            vector // the same for all formats
	limit, lowest, smallest, drop, nan, sign vector // from castConstants
	magic                                    vector // castNearest adds it to the exponent

	// magics[e%32] are the bits of the float32 that NEAREST in lines_amd64.s adds to a
	// value with the exponent e.
	magics [32]uint32
}

// stochasticVectors holds the constants of stochastic rounding to one format.
type stochasticVectors struct {
	abs, mix1, mix2, floor vector // the same for all formats
	ceiling, places, units vector // from stochasticConstants
	first, second          vector // VPSHUFB controls that select the random bits of two vectors
	low, high              vector // the same, where one word serves the two elements in its lane
	lift                   float32
}

// vectorConstants holds the constants of the casts to one format.
type vectorConstants struct {
	nearest    castVectors
	stochastic stochasticVectors
}

func newVectorConstants(f *format) *vectorConstants {
	smallest, drop, limit, signShift := f.castConstants()
	code := uint32(1)<<(32-signShift) - 1 // all bits of the code's byte or word
	v := &vectorConstants{nearest: castVectors{
		abs: splat(signBit - 1), inf: splat(infBits), one: splat(1),
		limit: splat(limit), lowest: splat(limit | signBit), smallest: splat(smallest), drop: splat(drop),
		nan: splat(code >> 1), sign: splat(code>>1 + 1),
		// The low bits of the sum are the code plus smallest>>drop. That is
		// even, so subtracting it here keeps ties to even.
		magic: splat(drop<<23 + -(smallest>>(drop&31))&code),
	}}
	for e := smallest >> 23; e <= max(smallest, limit)>>23; e++ {
		v.nearest.magics[e%32] = (e+drop)<<23 + (e<<23-smallest)>>(drop&31)&code
	}
	lift, ceiling, places, units := f.stochasticConstants()
	r := &v.stochastic
	*r = stochasticVectors{
		abs: splat(signBit - 1), mix1: splat(mix1), mix2: splat(mix2), floor: splat(math.Float32bits(liftedFloor)),
		ceiling: splat(ceiling), places: splat(places), units: splat(units), lift: lift,
	}
	for i := range r.first {
		from := uint32(2 * (i % 4))
		r.first[i], r.second[i] = twoBytes(from, signShift-16), twoBytes(8+from, signShift-16)
		from = uint32(4 * (i % 4))
		r.low[i], r.high[i] = twoBytes(from, signShift-16), twoBytes(from+2, signShift-16)
	}
	return v
}

// twoBytes returns the VPSHUFB control of one 32-bit lane: bytes from and from+1 go up
// bits up, the other bytes are zero.
func twoBytes(from, up uint32) uint32 {
	return (from|(from+1)<<8)<<up | 0x80808080&^(0xffff<<up)
}

// stochasticVectorLen is vectorLen for stochastic rounding of n elements from index on,
// which is even. It is a multiple of 32: one vector of words serves two of elements.
func stochasticVectorLen(index uint64, n int) int { return vectorLen(weylRun(index, n)) &^ 31 }

// rejectNaN returns n and amax, or zeros if amax is NaN: plain Go then casts all
// elements. The assembly cannot cast NaN, but its amax shows one.
func rejectNaN(n int, amax float32) (int, float32) {
	if amax != amax {
		return 0, 0
	}
	return n, amax
}

// rejectInf is rejectNaN for infinity too: some kernels misread an F16 infinity as
// a finite value.
func rejectInf(n int, amax float32) (int, float32) {
	if amax > math.MaxFloat32 {
		return 0, 0
	}
	return rejectNaN(n, amax)
}

func amaxVectors(x []float32) (int, float32) {
	n := vectorLen(len(x))
	switch {
	case n == 0:
		return 0, 0
	case haveAVX512:
		return n, amaxAVX512(&x[0], n, &rows[F16].vectors.nearest)
	}
	return n, amaxAVX2(&x[0], n, &rows[F16].vectors.nearest)
}

// wholeLines returns how many of n elements AVX-512 casts to eight bits: those that fill
// whole cache lines of codes. AVX2 casts the others.
func wholeLines(n int) int {
	if !haveAVX512 {
		return 0
	}
	return n &^ 63
}

// lineAligned reports whether dst starts at a cache line, as non-temporal stores need.
func lineAligned(dst []uint8) bool { return uintptr(unsafe.Pointer(&dst[0]))%64 == 0 }

func quantize8Vectors(dst []uint8, src []float32, f *format, scale float32, nonTemporal bool) (int, float32) {
	n := vectorLen(len(src))
	if n == 0 || !finitePositive(scale) || f.vectors == nil {
		return 0, 0
	}
	c := &f.vectors.nearest
	lines, amax := wholeLines(n), float32(0)
	nonTemporal = nonTemporal && lineAligned(dst)
	if lines > 0 {
		amax = quantize8AVX512(&dst[0], &src[0], lines, c, scale, nonTemporal)
	}
	if lines < n {
		amax = MaxAmax(amax, quantize8AVX2(&dst[lines], &src[lines], n-lines, c, scale))
	}
	return rejectNaN(n, amax)
}

// requantize8Vectors casts BF16 only if scaleInv is 1, and multiples of 32 elements.
func requantize8Vectors(dst []uint8, src []uint16, from DType, to *format, scaleInv, scale float32, nonTemporal bool) (int, float32) {
	n := vectorLen(len(src)) &^ 31
	if n == 0 || !finitePositive(scale) || !finitePositive(scaleInv) || from == BF16 && scaleInv != 1 || to.vectors == nil {
		return 0, 0
	}
	c := &to.vectors.nearest
	lines, amax, rest := wholeLines(n), float32(0), float32(0)
	nonTemporal = nonTemporal && lineAligned(dst)
	switch {
	case lines == 0:
	case from == BF16:
		amax = quantizeBF16AVX512(&dst[0], &src[0], lines, c, scale, nonTemporal)
	default:
		amax = quantizeF16AVX512(&dst[0], &src[0], lines, c, scale, scaleInv, nonTemporal)
	}
	switch {
	case lines == n:
	case from == BF16:
		rest = quantizeBF16AVX2(&dst[lines], &src[lines], n-lines, c, scale)
	default:
		rest = quantizeF16AVX2(&dst[lines], &src[lines], n-lines, c, scale, scaleInv)
	}
	return rejectInf(n, MaxAmax(amax, rest))
}

func quantize8StochasticVectors(dst []uint8, src []float32, f *format, scale float32, key, index uint64, nonTemporal bool) (int, float32) {
	n := stochasticVectorLen(index, len(src))
	if f.vectors == nil {
		return 0, 0
	}
	c := &f.vectors.stochastic
	if scale *= c.lift; n == 0 || !finitePositive(scale) {
		return 0, 0
	}
	first, key32 := weylValue(key, index/2)
	lines, amax := wholeLines(n), float32(0)
	nonTemporal = nonTemporal && lineAligned(dst)
	if lines > 0 {
		amax = quantize8StochasticAVX512(&dst[0], &src[0], lines, c, scale, first, key32, nonTemporal)
	}
	if lines < n {
		first += uint32(lines/2) * golden32
		amax = MaxAmax(amax, quantize8StochasticAVX2(&dst[lines], &src[lines], n-lines, c, scale, first, key32))
	}
	return rejectNaN(n, amax)
}

// requantize8StochasticVectors casts BF16 only if scaleInv is 1.
func requantize8StochasticVectors(dst []uint8, src []uint16, from DType, to *format, scaleInv, scale float32, key, index uint64, nonTemporal bool) (int, float32) {
	n := stochasticVectorLen(index, len(src))
	if to.vectors == nil {
		return 0, 0
	}
	c := &to.vectors.stochastic
	if scale *= c.lift; n == 0 || !finitePositive(scale) || !finitePositive(scaleInv) || from == BF16 && scaleInv != 1 {
		return 0, 0
	}
	first, key32 := weylValue(key, index/2)
	lines, amax, rest := wholeLines(n), float32(0), float32(0)
	nonTemporal = nonTemporal && lineAligned(dst)
	switch {
	case lines == 0:
	case from == BF16:
		amax = quantizeBF16StochasticAVX512(&dst[0], &src[0], lines, c, scale, first, key32, nonTemporal)
	default:
		amax = quantizeF16StochasticAVX512(&dst[0], &src[0], lines, c, scale, scaleInv, first, key32, nonTemporal)
	}
	first += uint32(lines/2) * golden32
	switch {
	case lines == n:
	case from == BF16:
		rest = quantizeBF16StochasticAVX2(&dst[lines], &src[lines], n-lines, c, scale, first, key32)
	default:
		rest = quantizeF16StochasticAVX2(&dst[lines], &src[lines], n-lines, c, scale, scaleInv, first, key32)
	}
	return rejectInf(n, MaxAmax(amax, rest))
}

func quantize16Vectors(dst []uint16, src []float32, scale float32) (int, float32) {
	n := vectorLen(len(src))
	switch {
	case n == 0 || !finitePositive(scale):
		return 0, 0
	case haveAVX512:
		return rejectNaN(n, quantize16AVX512(&dst[0], &src[0], n, &rows[F16].vectors.nearest, scale))
	}
	return rejectNaN(n, quantize16AVX2(&dst[0], &src[0], n, &rows[F16].vectors.nearest, scale))
}

func quantize16StochasticVectors(dst []uint16, src []float32, scale float32, key, index uint64) (int, float32) {
	n, c := stochasticVectorLen(index, len(src)), &rows[F16].vectors.stochastic
	if scale *= c.lift; n == 0 || !finitePositive(scale) {
		return 0, 0
	}
	first, key32 := weylValue(key, index/2)
	if haveAVX512 {
		return rejectNaN(n, quantize16StochasticAVX512(&dst[0], &src[0], n, c, scale, first, key32))
	}
	return rejectNaN(n, quantize16StochasticAVX2(&dst[0], &src[0], n, c, scale, first, key32))
}

func encodeBF16Vectors(dst []uint16, step int, src []float32, ld, count, n int) int {
	n = vectorLen(n)
	switch {
	case n == 0:
	case haveAVX512:
		encodeBF16AVX512(&dst[0], step, &src[0], ld, count, n, &rows[BF16].vectors.nearest)
	default:
		encodeBF16AVX2(&dst[0], step, &src[0], ld, count, n, &rows[BF16].vectors.nearest)
	}
	return n
}

func encodeBF16StochasticVectors(dst []uint16, src []float32, key, index uint64) int {
	n := stochasticVectorLen(index, len(src))
	if n == 0 {
		return 0
	}
	first, key32 := weylValue(key, index/2)
	if haveAVX512 {
		encodeBF16StochasticAVX512(&dst[0], &src[0], n, &rows[BF16].vectors.stochastic, first, key32)
	} else {
		encodeBF16StochasticAVX2(&dst[0], &src[0], n, &rows[BF16].vectors.stochastic, first, key32)
	}
	return n
}

func decodeBF16Vectors(dst []float32, src []uint16) int {
	n := vectorLen(len(src))
	switch {
	case n == 0:
	case haveAVX512:
		decodeBF16AVX512(&dst[0], &src[0], n)
	default:
		decodeBF16AVX2(&dst[0], &src[0], n)
	}
	return n
}

func dequantize8Vectors(dst []float32, src []uint8, f *format, scaleInv float32) int {
	n := vectorLen(len(src))
	switch {
	case n == 0 || f.decode == nil:
		return 0
	case f.decode == upperByte && haveAVX512:
		dequantizeE5M2AVX512(&dst[0], &src[0], n, scaleInv)
	case f.decode == upperByte:
		dequantizeE5M2AVX2(&dst[0], &src[0], n, scaleInv)
	case haveAVX512:
		dequantizeAVX512(&dst[0], &src[0], n, scaleInv, f.decode)
	default:
		dequantizeAVX2(&dst[0], &src[0], n, scaleInv, f.decode)
	}
	return n
}

func dequantize16Vectors(dst []float32, src []uint16, scaleInv float32) int {
	n := vectorLen(len(src))
	switch {
	case n == 0:
	case haveAVX512:
		dequantize16AVX512(&dst[0], &src[0], n, scaleInv)
	default:
		dequantize16AVX2(&dst[0], &src[0], n, scaleInv)
	}
	return n
}

// In the functions below, n is positive and a multiple of 16, count positive. It is a multiple of 32 for
// functions with a key and for casts of BF16 and F16 to eight bits, and of 64 for all
// AVX-512 casts to eight bits. first and key come from weylValue.

//go:noescape
func amaxAVX512(x *float32, n int, c *castVectors) (amax float32)

//go:noescape
func quantize8AVX512(dst *uint8, src *float32, n int, c *castVectors, scale float32, nonTemporal bool) (amax float32)

//go:noescape
func quantizeBF16AVX512(dst *uint8, src *uint16, n int, c *castVectors, scale float32, nonTemporal bool) (amax float32)

//go:noescape
func quantizeF16AVX512(dst *uint8, src *uint16, n int, c *castVectors, scale, scaleInv float32, nonTemporal bool) (amax float32)

//go:noescape
func quantize8StochasticAVX512(dst *uint8, src *float32, n int, c *stochasticVectors, scale float32, first, key uint32, nonTemporal bool) (amax float32)

//go:noescape
func quantizeBF16StochasticAVX512(dst *uint8, src *uint16, n int, c *stochasticVectors, scale float32, first, key uint32, nonTemporal bool) (amax float32)

//go:noescape
func quantizeF16StochasticAVX512(dst *uint8, src *uint16, n int, c *stochasticVectors, scale, scaleInv float32, first, key uint32, nonTemporal bool) (amax float32)

//go:noescape
func quantize16AVX512(dst *uint16, src *float32, n int, c *castVectors, scale float32) (amax float32)

//go:noescape
func quantize16StochasticAVX512(dst *uint16, src *float32, n int, c *stochasticVectors, scale float32, first, key uint32) (amax float32)

//go:noescape
func encodeBF16AVX512(dst *uint16, step int, src *float32, ld, count, n int, c *castVectors)

//go:noescape
func encodeBF16StochasticAVX512(dst *uint16, src *float32, n int, c *stochasticVectors, first, key uint32)

//go:noescape
func decodeBF16AVX512(dst *float32, src *uint16, n int)

//go:noescape
func dequantizeAVX512(dst *float32, src *uint8, n int, scaleInv float32, c *decodeWords)

//go:noescape
func dequantizeE5M2AVX512(dst *float32, src *uint8, n int, scaleInv float32)

//go:noescape
func dequantize16AVX512(dst *float32, src *uint16, n int, scaleInv float32)

//go:noescape
func amaxAVX2(x *float32, n int, c *castVectors) (amax float32)

//go:noescape
func quantize8AVX2(dst *uint8, src *float32, n int, c *castVectors, scale float32) (amax float32)

//go:noescape
func quantizeBF16AVX2(dst *uint8, src *uint16, n int, c *castVectors, scale float32) (amax float32)

//go:noescape
func quantizeF16AVX2(dst *uint8, src *uint16, n int, c *castVectors, scale, scaleInv float32) (amax float32)

//go:noescape
func quantize8StochasticAVX2(dst *uint8, src *float32, n int, c *stochasticVectors, scale float32, first, key uint32) (amax float32)

//go:noescape
func quantizeBF16StochasticAVX2(dst *uint8, src *uint16, n int, c *stochasticVectors, scale float32, first, key uint32) (amax float32)

//go:noescape
func quantizeF16StochasticAVX2(dst *uint8, src *uint16, n int, c *stochasticVectors, scale, scaleInv float32, first, key uint32) (amax float32)

//go:noescape
func quantize16AVX2(dst *uint16, src *float32, n int, c *castVectors, scale float32) (amax float32)

//go:noescape
func quantize16StochasticAVX2(dst *uint16, src *float32, n int, c *stochasticVectors, scale float32, first, key uint32) (amax float32)

//go:noescape
func encodeBF16AVX2(dst *uint16, step int, src *float32, ld, count, n int, c *castVectors)

//go:noescape
func encodeBF16StochasticAVX2(dst *uint16, src *float32, n int, c *stochasticVectors, first, key uint32)

//go:noescape
func decodeBF16AVX2(dst *float32, src *uint16, n int)

//go:noescape
func dequantizeAVX2(dst *float32, src *uint8, n int, scaleInv float32, c *decodeWords)

//go:noescape
func dequantizeE5M2AVX2(dst *float32, src *uint8, n int, scaleInv float32)

//go:noescape
func dequantize16AVX2(dst *float32, src *uint16, n int, scaleInv float32)
