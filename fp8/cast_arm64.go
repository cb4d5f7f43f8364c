//go:build !noasm

package fp8

import "math"

// The functions that the rest of the package calls do as many of the first
// elements as fill vectors, and say how many. Slices have the same length.

// inVectors is how many of n elements the assembly takes.
func inVectors(n int) int { return n &^ 15 }

// castLanes are the constants of castConstants and some more for one format,
// each to be repeated in the lanes of a vector.
type castLanes struct {
	limit, smallest, nan uint32
	right                uint32 // the bits dropped, as a left shift
	magic                uint32 // what castNearest adds to the exponent
	bias                 uint32 // what castStochastic subtracts from it, in the place of the code
}

var castTable = func() (t [len(formats)]castLanes) {
	for d := range t {
		f := &formats[d]
		if f.mantissaBits == 0 || f.size > 2 {
			continue
		}
		smallest, drop, limit, nan, _ := f.castConstants()
		bias := smallest >> (drop & 31)
		t[d] = castLanes{
			limit: limit, smallest: smallest, nan: nan, right: -drop, bias: bias,
			// bias is subtracted from the sum in the low bits of its
			// significand. It is even, so that ties stay ties to even.
			magic: drop<<23 + -bias&(nan<<1|1),
		}
	}
	return t
}()

// randomLanes is the state of Random for the elements from index on.
type randomLanes struct{ index, key0, key1 uint32 }

func newRandomLanes(key, index uint64) randomLanes {
	return randomLanes{uint32(index), uint32(key), uint32(key>>32) + uint32(index>>32)*0x9e3779b9}
}

// oneHighWord is how many of the n indices from index on have the same high
// word: the assembly counts in 32 bits.
func oneHighWord(index uint64, n int) int {
	return int(min(uint64(n), 1<<32-index&math.MaxUint32))
}

func amaxVectors(x []float32) (int, float32) {
	n := inVectors(len(x))
	if n == 0 {
		return 0, 0
	}
	return n, amaxNEON(&x[0], n)
}

func quantize8Vectors(dst []uint8, src []float32, d DType, scale float32) (int, float32) {
	n := inVectors(len(src))
	if n == 0 {
		return 0, 0
	}
	return n, quantize8NEON(&dst[0], &src[0], n, &castTable[d], scale)
}

func quantize8StochasticVectors(dst []uint8, src []float32, d DType, scale float32, key, index uint64) (int, float32) {
	n := inVectors(oneHighWord(index, len(src)))
	if n == 0 {
		return 0, 0
	}
	r := newRandomLanes(key, index)
	return n, quantize8StochasticNEON(&dst[0], &src[0], n, &castTable[d], scale, &r)
}

func quantize16Vectors(dst []uint16, src []float32, scale float32) (int, float32) {
	n := inVectors(len(src))
	if n == 0 {
		return 0, 0
	}
	return n, quantize16NEON(&dst[0], &src[0], n, &castTable[F16], scale)
}

func quantize16StochasticVectors(dst []uint16, src []float32, scale float32, key, index uint64) (int, float32) {
	n := inVectors(oneHighWord(index, len(src)))
	if n == 0 {
		return 0, 0
	}
	r := newRandomLanes(key, index)
	return n, quantize16StochasticNEON(&dst[0], &src[0], n, &castTable[F16], scale, &r)
}

func encodeBF16Vectors(dst []uint16, src []float32) int {
	n := inVectors(len(src))
	if n > 0 {
		encodeBF16NEON(&dst[0], &src[0], n)
	}
	return n
}

func encodeBF16StochasticVectors(dst []uint16, src []float32, key, index uint64) int {
	n := inVectors(oneHighWord(index, len(src)))
	if n > 0 {
		r := newRandomLanes(key, index)
		encodeBF16StochasticNEON(&dst[0], &src[0], n, &r)
	}
	return n
}

func decodeBF16Vectors(dst []float32, src []uint16) int {
	n := inVectors(len(src))
	if n > 0 {
		decodeBF16NEON(&dst[0], &src[0], n)
	}
	return n
}

func dequantize8Vectors(dst []float32, src []uint8, d DType, scaleInv float32) int {
	n := inVectors(len(src))
	switch {
	case n == 0 || d == E8M0: // a scale for many elements each, never many of them
		return 0
	case d == E5M2:
		dequantizeE5M2NEON(&dst[0], &src[0], n, scaleInv)
	default:
		dequantizeE4M3NEON(&dst[0], &src[0], n, scaleInv, formats[d].maxCode+1)
	}
	return n
}

func dequantize16Vectors(dst []float32, src []uint16, scaleInv float32) int {
	n := inVectors(len(src))
	if n > 0 {
		dequantize16NEON(&dst[0], &src[0], n, scaleInv)
	}
	return n
}

// In all of these n is positive and a multiple of 16.

//go:noescape
func amaxNEON(x *float32, n int) (amax float32)

//go:noescape
func quantize8NEON(dst *uint8, src *float32, n int, c *castLanes, scale float32) (amax float32)

//go:noescape
func quantize8StochasticNEON(dst *uint8, src *float32, n int, c *castLanes, scale float32, r *randomLanes) (amax float32)

//go:noescape
func quantize16NEON(dst *uint16, src *float32, n int, c *castLanes, scale float32) (amax float32)

//go:noescape
func quantize16StochasticNEON(dst *uint16, src *float32, n int, c *castLanes, scale float32, r *randomLanes) (amax float32)

//go:noescape
func encodeBF16NEON(dst *uint16, src *float32, n int)

//go:noescape
func encodeBF16StochasticNEON(dst *uint16, src *float32, n int, r *randomLanes)

//go:noescape
func decodeBF16NEON(dst *float32, src *uint16, n int)

// dequantizeE4M3NEON takes codes from special on for infinity and NaN.
//
//go:noescape
func dequantizeE4M3NEON(dst *float32, src *uint8, n int, scaleInv float32, special uint32)

//go:noescape
func dequantizeE5M2NEON(dst *float32, src *uint8, n int, scaleInv float32)

//go:noescape
func dequantize16NEON(dst *float32, src *uint16, n int, scaleInv float32)
