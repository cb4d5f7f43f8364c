package fp8

import (
	"fmt"
	"math"
)

// EncodeBF16 rounds src to nearest BF16, ties to even, and writes the codes to
// dst. Overflow gives infinity instead of saturating, as in IEEE 754: BF16 has
// the range of float32, needs no scale, and an infinity must stay visible.
//
// EncodeBF16 panics if dst is shorter than src.
func EncodeBF16(dst []uint16, src []float32) {
	dst = dst[:len(src)]
	n := encodeBF16Vectors(dst, 0, src, 0, 1, len(src))
	encodeBF16Go(dst[n:], src[n:])
}

// EncodeBF16Rows is EncodeBF16 for rows of n elements, whose beginnings are step elements apart
// in dst, and ld in src.
//
// EncodeBF16Rows panics if dst or src is shorter than the rows.
func EncodeBF16Rows(dst []uint16, step int, src []float32, ld, rows, n int) {
	if rows == 0 || n == 0 {
		return
	}
	_, _ = dst[(rows-1)*step+n-1], src[(rows-1)*ld+n-1]
	whole := encodeBF16Vectors(dst, step, src, ld, rows, n)
	if whole == n {
		return
	}
	for r := range rows {
		encodeBF16Go(dst[r*step:][whole:n], src[r*ld:][whole:n])
	}
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

// EncodeBF16As rounds src to the nearest values of d, ties to even, and writes their BF16
// codes to dst. A masked d truncates (ParseDType). d is a format that BF16 contains, such as E8M5 (Format.Container), or BF16
// itself. Overflow gives infinity, as in EncodeBF16: such a format has no scale either.
//
// EncodeBF16As panics if dst is shorter than src or BF16 does not contain d.
func EncodeBF16As(dst []uint16, src []float32, d DType) {
	f := d.row()
	switch {
	case d == BF16:
		EncodeBF16(dst, src)
		return
	case f.Container != BF16:
		panic(fmt.Sprintf("fp8: EncodeBF16As: bf16 does not contain %s", d))
	case f.Mask:
		EncodeBF16(dst, src)
		for i, code := range dst[:len(src)] {
			dst[i] = uint16(f.masked(uint32(code)))
		}
		return
	}
	dst = dst[:len(src)]
	smallest, drop, limit, _ := f.castConstants()
	half := uint32(1)<<(drop-1) - 1
	// The unit in the last place of subnormal is that of d's subnormal values: adding
	// subnormal to one of them rounds it.
	subnormal := math.Float32frombits(smallest + drop<<23)
	for i, x := range src {
		b := math.Float32bits(x)
		a := b &^ signBit
		switch {
		case a > infBits:
			dst[i] = 0x7fff
			continue
		case a < smallest:
			a = math.Float32bits(math.Float32frombits(a) + subnormal - subnormal)
		default:
			a = (a + half + a>>(drop&31)&1) >> (drop & 31) << (drop & 31)
		}
		if a > limit {
			a = infBits
		}
		dst[i] = uint16((a | b&signBit) >> 16)
	}
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
