package emu

import (
	"math"

	"octet/fp8"
)

// This file is the products of two FP8 operands by AVX-512's VDPBF16PS, which
// multiplies pairs of BF16. It adds to an accumulator first the product of the
// upper halves of two words, then that of the lower ones, and rounds after
// each. So with an element of k in the upper half and the next one in the lower,
// it is two links of the chain that gemm.go defines, bit for bit: FP8 is exact
// in BF16, a product of two is exact in FP32, and all sums are multiples of 2^-32,
// so that the instruction's zeros for subnormal numbers do not matter. BF16
// operands have such products; they keep to FP32.
//
// Blocks of op(A) and op(B) are then words of pairs where they were floats, half
// as many along k; plans, tiles, transposes of words and epilogues are the same.
// If k is odd the last word's lower half is zero, which adds +0 to a sum that is
// never -0.

// pairKernel is what a gemmKernel adds for such products.
type pairKernel struct {
	name string

	// multiply is gemmKernel's for words of pairs; k counts words.
	multiply func(k, rows int, a []float32, step, stepK int, b, c []float32, load bool)

	// decode is gemmKernel's, for FP8 codes to words. along says that k runs along
	// the rows of src, and a row has half as many words as codes. Else a row of
	// words is two rows of src.
	decode func(dst []float32, step, chunk int, src matrix, rows, cols int, along bool)
}

// bf16Table is BF16 of the codes of an eight-bit format without their sign: the
// lower bytes, then the upper ones.
type bf16Table [256]uint8

var bf16Tables = func() (t [fp8.E5M2 + 1]bf16Table) {
	for _, d := range []fp8.DType{fp8.E4M3, fp8.E4M3IEEE, fp8.E5M2} {
		for code := range 128 {
			bits := math.Float32bits(d.Table()[code])
			t[d][code], t[d][128+code] = uint8(bits>>16), uint8(bits>>24)
		}
	}
	return t
}()

// bf16 is the value of a code with its sign, as BF16.
func (t *bf16Table) bf16(code uint8) uint16 {
	upper := t[128|code] | code&0x80
	return uint16(upper)<<8 | uint16(t[code&0x7f])
}

// goPairs goes with goKernel, and is the specification.
var goPairs = pairKernel{name: "pairs in go", multiply: multiplyPairsGo, decode: decodePairsGo}

func multiplyPairsGo(k, rows int, a []float32, step, stepK int, b, c []float32, load bool) {
	const mr, nr = 4, 16
	for i := range min(rows, mr) {
		for j := range nr {
			sum := float32(0)
			if load {
				sum = c[i*nr+j]
			}
			for l := range k {
				x, y := math.Float32bits(a[i*step+l*stepK]), math.Float32bits(b[l*nr+j])
				sum += float32(math.Float32frombits(x&^0xffff) * math.Float32frombits(y&^0xffff))
				sum += float32(math.Float32frombits(x<<16) * math.Float32frombits(y<<16))
			}
			c[i*nr+j] = sum
		}
	}
}

func decodePairsGo(dst []float32, step, chunk int, src matrix, rows, cols int, along bool) {
	const nr = 16
	table := &bf16Tables[src.dtype]
	down, right := 2, 1 // codes in a word
	if along {
		down, right = 1, 2
	}
	value := func(i, j int) uint32 {
		if i >= rows || j >= cols {
			return 0
		}
		return uint32(table.bf16(src.u8[i*src.ld+j]))
	}
	for i := range parts(rows, down) {
		for j := range parts(cols, right) {
			upper := value(i*down, j*right)
			lower := value(i*down+down-1, j*right+right-1)
			dst[i*step+j/nr*chunk+j%nr] = math.Float32frombits(upper<<16 | lower)
		}
	}
}
