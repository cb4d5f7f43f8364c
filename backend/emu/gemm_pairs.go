package emu

import (
	"math"

	"octet/fp8"
)

// This file is the products of FP8 and BF16 operands by AVX-512's VDPBF16PS, which
// multiplies pairs of BF16. It adds to an accumulator first the product of the
// upper halves of two words, then that of the lower ones, and rounds after
// each. So with an element of k in the upper half and the next one in the lower,
// it is two links of the chain that gemm.go defines, bit for bit, but that a
// subnormal number counts as zero. Of FP8, which is exact in BF16, all sums are
// multiples of 2^-32. BF16 operands are looked at first: where they have numbers so
// small that a sum might be subnormal, their product is by FP32 this time.
//
// Blocks of op(A) and op(B) are then words of pairs where they were floats, half
// as many along k; plans, tiles, transposes of words and epilogues are the same.
// If k is odd the last word's lower half is zero, which adds +0 to a sum that is
// never -0.

// pairKernel is what a gemmKernel adds for such products.
type pairKernel struct {
	name string

	// reuse is how many multiplications an element of BF16 operands has to be for, on
	// average, if looking at it first is to be worth it.
	reuse int

	// multiply is gemmKernel's for words of pairs; k counts words.
	multiply func(k, rows int, a []float32, step, stepK int, b, c []float32, load bool)

	// decode is gemmKernel's, for codes of FP8 and BF16 to words. along says that k
	// runs along the rows of src, and a row has half as many words as codes. Else a
	// row of words is two rows of src.
	decode func(dst []float32, step, chunk int, src matrix, rows, cols int, along bool)

	// least is the smaller of itself and the smallest magnitude in x but for zeros,
	// all less one: as an unsigned number, zero is the largest then.
	least func(least uint16, x []uint16) uint16
}

// pairChoice is between pairs and FP32, for a product with operands of BF16.
type pairChoice struct {
	pairs         *pairKernel
	words, floats gemmPlan
	scanned       [2]int // tasks that look at A, and at B
	scan          func(worker, task int)
}

// scanElements is how many a task looks at.
const scanElements = 1 << 15

// choosePairs makes the choice each time that g runs.
func (g *gemm) choosePairs(pairs *pairKernel) {
	c := &pairChoice{pairs: pairs, floats: g.plan}
	c.words = planGemm(g.kernel, g.m, g.n, parts(g.k, 2), depthUnit, g.transA, g.pool.size())
	g.pool.reserve(c.words.scratch())
	operands := [2]*matrix{&g.a, &g.b}
	var rows [2]int // of a task
	for i, x := range operands {
		if x.dtype == fp8.BF16 {
			rows[i] = max(1, scanElements/max(1, x.cols))
			c.scanned[i] = parts(x.rows, rows[i])
		}
	}
	c.scan = func(worker, task int) {
		i := 0
		if task >= c.scanned[0] {
			i, task = 1, task-c.scanned[0]
		}
		x, least := operands[i], &g.pool.products[worker].least[i]
		for r := task * rows[i]; r < min(x.rows, (task+1)*rows[i]); r++ {
			*least = pairs.least(*least, x.u16[r*x.ld:][:x.cols])
		}
	}
	g.choice = c
}

// choose looks at the operands. With least exponents e and f, biased as FP32's, and
// seven bits of mantissa, all products and sums are multiples of
// 2^(e-127-7)·2^(f-127-7): what is not zero is normal if that is 2^-126 or more.
func (g *gemm) choose() {
	const enough = 2*(127+7) - 126
	c := g.choice
	workers := g.pool.products
	for w := range workers {
		workers[w].least = [2]uint16{math.MaxUint16, math.MaxUint16}
	}
	g.pool.run(c.scanned[0]+c.scanned[1], c.scan)
	var exponent [2]int
	for i, d := range [2]fp8.DType{g.a.dtype, g.b.dtype} {
		least := uint16(math.MaxUint16)
		for w := range workers {
			least = min(least, workers[w].least[i])
		}
		switch d {
		case fp8.BF16:
			exponent[i] = (int(least) + 1) >> 7
		case fp8.E5M2:
			exponent[i] = 127 + 7 - 16 // its subnormal numbers are multiples of 2^-16, E4M3's of 2^-9
		default:
			exponent[i] = 127 + 7 - 9
		}
	}
	g.pairs, g.plan = nil, c.floats
	if min(exponent[0], exponent[1]) > 0 && exponent[0]+exponent[1] >= enough {
		g.pairs, g.plan = c.pairs, c.words
	}
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
var goPairs = pairKernel{
	name: "pairs in go", reuse: 32, multiply: multiplyPairsGo, decode: decodePairsGo, least: leastBF16Go,
}

func leastBF16Go(least uint16, x []uint16) uint16 {
	for _, v := range x {
		least = min(least, v&0x7fff-1)
	}
	return least
}

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
	down, right := 2, 1 // codes in a word
	if along {
		down, right = 1, 2
	}
	value := func(i, j int) uint32 {
		if i >= rows || j >= cols {
			return 0
		}
		if src.dtype == fp8.BF16 {
			return uint32(src.u16[i*src.ld+j])
		}
		return uint32(bf16Tables[src.dtype].bf16(src.u8[i*src.ld+j]))
	}
	for i := range parts(rows, down) {
		for j := range parts(cols, right) {
			upper := value(i*down, j*right)
			lower := value(i*down+down-1, j*right+right-1)
			dst[i*step+j/nr*chunk+j%nr] = math.Float32frombits(upper<<16 | lower)
		}
	}
}
