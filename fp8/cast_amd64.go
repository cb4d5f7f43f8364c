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

// inVectors is how many of n elements the assembly takes: it has no masks.
func inVectors(n int) int {
	if !haveAVX2 && !haveAVX512 {
		return 0
	}
	return n &^ 15
}

// vector is one constant for all lanes of 256 bits.
type vector [8]uint32

func splat(x uint32) (v vector) {
	for i := range v {
		v[i] = x
	}
	return v
}

// castVectors are the constants of rounding to nearest in one format.
type castVectors struct {
	abs, inf, one                            vector // the same for all
	limit, lowest, smallest, drop, nan, sign vector // of castConstants
	magic                                    vector // what is added to the exponent

	// What is added to a number of this exponent, by its low five bits.
	magics [32]uint32
}

// randomVectors are the constants of rounding to one format at random.
type randomVectors struct {
	abs, mix1, mix2, floor vector // the same for all
	ceiling, places, units vector // of topConstants
	first, second          vector // where the random bits of two vectors come from, for VPSHUFB
	low, high              vector // likewise, if each word is that of two elements in its place
	lift                   float32
}

var (
	castTable   [len(formats)]castVectors
	randomTable [len(formats)]randomVectors
)

func init() {
	for d := range formats {
		f := &formats[d]
		if f.mantissaBits == 0 || f.size > 2 {
			continue
		}
		smallest, drop, limit, nan, signShift := f.castConstants()
		castTable[d] = castVectors{
			abs: splat(signBit - 1), inf: splat(infBits), one: splat(1),
			limit: splat(limit), lowest: splat(limit | signBit), smallest: splat(smallest), drop: splat(drop),
			nan: splat(nan), sign: splat(nan + 1),
			// The low bits of the sum are the code and smallest>>drop, which is
			// even: subtracting it here leaves ties to even what they are.
			magic: splat(drop<<23 + -(smallest>>(drop&31))&(nan<<1|1)),
		}
		for e := smallest >> 23; e <= limit>>23; e++ {
			castTable[d].magics[e%32] = (e+drop)<<23 + (e<<23-smallest)>>(drop&31)&(nan<<1|1)
		}
		lift, ceiling, places, units := f.topConstants()
		r := randomVectors{
			abs: splat(signBit - 1), mix1: splat(mix1), mix2: splat(mix2), floor: splat(math.Float32bits(liftedFloor)),
			ceiling: splat(ceiling), places: splat(places), units: splat(units), lift: lift,
		}
		for i := range r.first {
			from := uint32(2 * (i % 4))
			r.first[i], r.second[i] = twoBytes(from, signShift-16), twoBytes(8+from, signShift-16)
			from = uint32(4 * (i % 4))
			r.low[i], r.high[i] = twoBytes(from, signShift-16), twoBytes(from+2, signShift-16)
		}
		randomTable[d] = r
	}
}

// twoBytes is the control of VPSHUFB for 32 bits that get the bytes from and from+1
// so many bits up, among zeros.
func twoBytes(from, up uint32) uint32 {
	return (from|(from+1)<<8)<<up | 0x80808080&^(0xffff<<up)
}

// inRandomVectors is inVectors for n elements from index on, which is even, with
// random bits: they come for two vectors at a time.
func inRandomVectors(index uint64, n int) int { return inVectors(randomRun(index, n)) &^ 31 }

// unlessNaN makes the plain Go cast all elements if there was a NaN among
// those that the assembly did: it has no code for that, but the amax shows it.
func unlessNaN(n int, amax float32) (int, float32) {
	if amax != amax {
		return 0, 0
	}
	return n, amax
}

// unlessInfinite is unlessNaN where the assembly took an infinity of F16 for a number.
func unlessInfinite(n int, amax float32) (int, float32) {
	if amax > math.MaxFloat32 {
		return 0, 0
	}
	return unlessNaN(n, amax)
}

func amaxVectors(x []float32) (int, float32) {
	n := inVectors(len(x))
	switch {
	case n == 0:
		return 0, 0
	case haveAVX512:
		return n, amaxAVX512(&x[0], n, &castTable[F16])
	}
	return n, amaxAVX2(&x[0], n, &castTable[F16])
}

// inLines is how many of the n elements that vectors take AVX-512 casts to eight
// bits: whole cache lines of codes. The narrower vectors do the others.
func inLines(n int) int {
	if !haveAVX512 {
		return 0
	}
	return n &^ 63
}

// onLines reports whether dst begins with a cache line, as stores that stream must.
func onLines(dst []uint8) bool { return uintptr(unsafe.Pointer(&dst[0]))%64 == 0 }

func quantize8Vectors(dst []uint8, src []float32, d DType, scale float32, stream bool) (int, float32) {
	n, c := inVectors(len(src)), &castTable[d]
	if n == 0 || !usual(scale) {
		return 0, 0
	}
	lines, amax := inLines(n), float32(0)
	stream = stream && onLines(dst)
	if lines > 0 {
		amax = quantize8AVX512(&dst[0], &src[0], lines, c, scale, stream)
	}
	if lines < n {
		amax = MaxAmax(amax, quantize8AVX2(&dst[lines], &src[lines], n-lines, c, scale))
	}
	return unlessNaN(n, amax)
}

// requantize8Vectors takes BF16 only without a scale of its own, and 32 elements at a
// time.
func requantize8Vectors(dst []uint8, src []uint16, from, to DType, scaleInv, scale float32, stream bool) (int, float32) {
	n, c := inVectors(len(src)), &castTable[to]
	n &^= 31
	if n == 0 || !usual(scale) || !usual(scaleInv) || from == BF16 && scaleInv != 1 {
		return 0, 0
	}
	lines, amax, rest := inLines(n), float32(0), float32(0)
	stream = stream && onLines(dst)
	switch {
	case lines == 0:
	case from == BF16:
		amax = quantizeBF16AVX512(&dst[0], &src[0], lines, c, scale, stream)
	default:
		amax = quantizeF16AVX512(&dst[0], &src[0], lines, c, scale, scaleInv, stream)
	}
	switch {
	case lines == n:
	case from == BF16:
		rest = quantizeBF16AVX2(&dst[lines], &src[lines], n-lines, c, scale)
	default:
		rest = quantizeF16AVX2(&dst[lines], &src[lines], n-lines, c, scale, scaleInv)
	}
	return unlessInfinite(n, MaxAmax(amax, rest))
}

func quantize8StochasticVectors(dst []uint8, src []float32, d DType, scale float32, key, index uint64, stream bool) (int, float32) {
	n, c := inRandomVectors(index, len(src)), &randomTable[d]
	if scale *= c.lift; n == 0 || !usual(scale) {
		return 0, 0
	}
	first, key32 := firstWord(key, index/2)
	lines, amax := inLines(n), float32(0)
	stream = stream && onLines(dst)
	if lines > 0 {
		amax = quantize8StochasticAVX512(&dst[0], &src[0], lines, c, scale, first, key32, stream)
	}
	if lines < n {
		first += uint32(lines/2) * golden32
		amax = MaxAmax(amax, quantize8StochasticAVX2(&dst[lines], &src[lines], n-lines, c, scale, first, key32))
	}
	return unlessNaN(n, amax)
}

// requantize8StochasticVectors takes BF16 only without a scale of its own.
func requantize8StochasticVectors(dst []uint8, src []uint16, from, to DType, scaleInv, scale float32, key, index uint64, stream bool) (int, float32) {
	n, c := inRandomVectors(index, len(src)), &randomTable[to]
	if scale *= c.lift; n == 0 || !usual(scale) || !usual(scaleInv) || from == BF16 && scaleInv != 1 {
		return 0, 0
	}
	first, key32 := firstWord(key, index/2)
	lines, amax, rest := inLines(n), float32(0), float32(0)
	stream = stream && onLines(dst)
	switch {
	case lines == 0:
	case from == BF16:
		amax = quantizeBF16StochasticAVX512(&dst[0], &src[0], lines, c, scale, first, key32, stream)
	default:
		amax = quantizeF16StochasticAVX512(&dst[0], &src[0], lines, c, scale, scaleInv, first, key32, stream)
	}
	first += uint32(lines/2) * golden32
	switch {
	case lines == n:
	case from == BF16:
		rest = quantizeBF16StochasticAVX2(&dst[lines], &src[lines], n-lines, c, scale, first, key32)
	default:
		rest = quantizeF16StochasticAVX2(&dst[lines], &src[lines], n-lines, c, scale, scaleInv, first, key32)
	}
	return unlessInfinite(n, MaxAmax(amax, rest))
}

func quantize16Vectors(dst []uint16, src []float32, scale float32) (int, float32) {
	n := inVectors(len(src))
	switch {
	case n == 0 || !usual(scale):
		return 0, 0
	case haveAVX512:
		return unlessNaN(n, quantize16AVX512(&dst[0], &src[0], n, &castTable[F16], scale))
	}
	return unlessNaN(n, quantize16AVX2(&dst[0], &src[0], n, &castTable[F16], scale))
}

func quantize16StochasticVectors(dst []uint16, src []float32, scale float32, key, index uint64) (int, float32) {
	n, c := inRandomVectors(index, len(src)), &randomTable[F16]
	if scale *= c.lift; n == 0 || !usual(scale) {
		return 0, 0
	}
	first, key32 := firstWord(key, index/2)
	if haveAVX512 {
		return unlessNaN(n, quantize16StochasticAVX512(&dst[0], &src[0], n, c, scale, first, key32))
	}
	return unlessNaN(n, quantize16StochasticAVX2(&dst[0], &src[0], n, c, scale, first, key32))
}

func encodeBF16Vectors(dst []uint16, src []float32) int {
	n := inVectors(len(src))
	switch {
	case n == 0:
	case haveAVX512:
		encodeBF16AVX512(&dst[0], &src[0], n, &castTable[BF16])
	default:
		encodeBF16AVX2(&dst[0], &src[0], n, &castTable[BF16])
	}
	return n
}

func encodeBF16StochasticVectors(dst []uint16, src []float32, key, index uint64) int {
	n := inRandomVectors(index, len(src))
	if n == 0 {
		return 0
	}
	first, key32 := firstWord(key, index/2)
	if haveAVX512 {
		encodeBF16StochasticAVX512(&dst[0], &src[0], n, &randomTable[BF16], first, key32)
	} else {
		encodeBF16StochasticAVX2(&dst[0], &src[0], n, &randomTable[BF16], first, key32)
	}
	return n
}

func decodeBF16Vectors(dst []float32, src []uint16) int {
	n := inVectors(len(src))
	switch {
	case n == 0:
	case haveAVX512:
		decodeBF16AVX512(&dst[0], &src[0], n)
	default:
		decodeBF16AVX2(&dst[0], &src[0], n)
	}
	return n
}

func dequantize8Vectors(dst []float32, src []uint8, d DType, scaleInv float32) int {
	n := inVectors(len(src))
	if n == 0 || d == E8M0 { // a scale for many elements each, never many of them
		return 0
	}
	largest := formats[d].maxCode << 7 * 0x10001 // its fields where F16 has them, twice
	switch {
	case d == E5M2 && haveAVX512:
		dequantizeE5M2AVX512(&dst[0], &src[0], n, scaleInv)
	case d == E5M2:
		dequantizeE5M2AVX2(&dst[0], &src[0], n, scaleInv)
	case haveAVX512:
		dequantizeE4M3AVX512(&dst[0], &src[0], n, scaleInv, largest)
	default:
		dequantizeE4M3AVX2(&dst[0], &src[0], n, scaleInv, largest)
	}
	return n
}

func dequantize16Vectors(dst []float32, src []uint16, scaleInv float32) int {
	n := inVectors(len(src))
	switch {
	case n == 0:
	case haveAVX512:
		dequantize16AVX512(&dst[0], &src[0], n, scaleInv)
	default:
		dequantize16AVX2(&dst[0], &src[0], n, scaleInv)
	}
	return n
}

// In all of these n is positive and a multiple of 16, of 32 where there is a key; first
// and key are those of firstWord.

//go:noescape
func amaxAVX512(x *float32, n int, c *castVectors) (amax float32)

//go:noescape
func quantize8AVX512(dst *uint8, src *float32, n int, c *castVectors, scale float32, stream bool) (amax float32)

//go:noescape
func quantizeBF16AVX512(dst *uint8, src *uint16, n int, c *castVectors, scale float32, stream bool) (amax float32)

//go:noescape
func quantizeF16AVX512(dst *uint8, src *uint16, n int, c *castVectors, scale, scaleInv float32, stream bool) (amax float32)

//go:noescape
func quantize8StochasticAVX512(dst *uint8, src *float32, n int, c *randomVectors, scale float32, first, key uint32, stream bool) (amax float32)

//go:noescape
func quantizeBF16StochasticAVX512(dst *uint8, src *uint16, n int, c *randomVectors, scale float32, first, key uint32, stream bool) (amax float32)

//go:noescape
func quantizeF16StochasticAVX512(dst *uint8, src *uint16, n int, c *randomVectors, scale, scaleInv float32, first, key uint32, stream bool) (amax float32)

//go:noescape
func quantize16AVX512(dst *uint16, src *float32, n int, c *castVectors, scale float32) (amax float32)

//go:noescape
func quantize16StochasticAVX512(dst *uint16, src *float32, n int, c *randomVectors, scale float32, first, key uint32) (amax float32)

//go:noescape
func encodeBF16AVX512(dst *uint16, src *float32, n int, c *castVectors)

//go:noescape
func encodeBF16StochasticAVX512(dst *uint16, src *float32, n int, c *randomVectors, first, key uint32)

//go:noescape
func decodeBF16AVX512(dst *float32, src *uint16, n int)

//go:noescape
func dequantizeE4M3AVX512(dst *float32, src *uint8, n int, scaleInv float32, largest uint32)

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
func quantize8StochasticAVX2(dst *uint8, src *float32, n int, c *randomVectors, scale float32, first, key uint32) (amax float32)

//go:noescape
func quantizeBF16StochasticAVX2(dst *uint8, src *uint16, n int, c *randomVectors, scale float32, first, key uint32) (amax float32)

//go:noescape
func quantizeF16StochasticAVX2(dst *uint8, src *uint16, n int, c *randomVectors, scale, scaleInv float32, first, key uint32) (amax float32)

//go:noescape
func quantize16AVX2(dst *uint16, src *float32, n int, c *castVectors, scale float32) (amax float32)

//go:noescape
func quantize16StochasticAVX2(dst *uint16, src *float32, n int, c *randomVectors, scale float32, first, key uint32) (amax float32)

//go:noescape
func encodeBF16AVX2(dst *uint16, src *float32, n int, c *castVectors)

//go:noescape
func encodeBF16StochasticAVX2(dst *uint16, src *float32, n int, c *randomVectors, first, key uint32)

//go:noescape
func decodeBF16AVX2(dst *float32, src *uint16, n int)

//go:noescape
func dequantizeE4M3AVX2(dst *float32, src *uint8, n int, scaleInv float32, largest uint32)

//go:noescape
func dequantizeE5M2AVX2(dst *float32, src *uint8, n int, scaleInv float32)

//go:noescape
func dequantize16AVX2(dst *float32, src *uint16, n int, scaleInv float32)
