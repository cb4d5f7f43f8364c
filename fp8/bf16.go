package fp8

import "math"

// EncodeBF16 rounds src to nearest BF16, ties to even, and writes the codes to
// dst. Overflow gives infinity instead of saturating, as in IEEE 754: BF16 has
// the range of float32, needs no scale, and an infinity must stay visible.
//
// EncodeBF16 panics if dst is shorter than src.
func EncodeBF16(dst []uint16, src []float32) {
	dst = dst[:len(src)]
	n := encodeBF16Vectors(dst, src)
	encodeBF16Go(dst[n:], src[n:])
}

// EncodeBF16Stochastic is EncodeBF16 with stochastic rounding. It rounds
// element i with Random(key, index+i), where index is the position of src[0]
// in its whole tensor.
func EncodeBF16Stochastic(dst []uint16, src []float32, key, index uint64) {
	dst = dst[:len(src)]
	odd := oddFirst(index, len(src))
	encodeBF16StochasticGo(dst[:odd], src[:odd], key, index)
	n := odd + encodeBF16StochasticVectors(dst[odd:], src[odd:], key, index+uint64(odd))
	encodeBF16StochasticGo(dst[n:], src[n:], key, index+uint64(n))
}

// DecodeBF16 writes the float32 values of the BF16 codes in src to dst.
//
// DecodeBF16 panics if dst is shorter than src.
func DecodeBF16(dst []float32, src []uint16) {
	dst = dst[:len(src)]
	n := decodeBF16Vectors(dst, src)
	for i, code := range src[n:] {
		dst[n+i] = math.Float32frombits(uint32(code) << 16)
	}
}

func encodeBF16Go(dst []uint16, src []float32) {
	dst = dst[:len(src)]
	for i, x := range src {
		b := math.Float32bits(x)
		if b&^signBit > infBits {
			dst[i] = 0x7fff
			continue
		}
		dst[i] = uint16((b + 0x7fff + b>>16&1) >> 16)
	}
}

func encodeBF16StochasticGo(dst []uint16, src []float32, key, index uint64) {
	dst = dst[:len(src)]
	for i, x := range src {
		b := math.Float32bits(x)
		if b&^signBit > infBits {
			dst[i] = 0x7fff
			continue
		}
		dst[i] = uint16((b + Random(key, index+uint64(i))>>16) >> 16)
	}
}
