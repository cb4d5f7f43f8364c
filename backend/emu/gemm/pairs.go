package gemm

import (
	"math"
	"sync/atomic"

	"octet/backend/emu/memory"
	"octet/backend/emu/pool"
	"octet/fp8"
)

// This file computes GEMMs of FP8 and BF16 operands with AVX-512's VDPBF16PS, which
// multiplies pairs of BF16. The instruction adds to an accumulator the product of the
// upper halves of two words, then the product of the lower halves, and rounds after each.
// With element l of k in the upper half and element l+1 in the lower, it computes two
// steps of the chain that gemm.go defines, bit for bit, except that it flushes subnormals
// to zero. Values of up to eight bits are exact in BF16; sums of products of FP8 are
// multiples of 2^-32, never subnormal. BF16 operands and block scales (scaled_pairs.go) are
// scanned in each run: if a sum could be subnormal, that run uses FP32.
//
// Blocks of op(A) and op(B) then consist of words, each a pair, instead of floats, and
// have half as many along k. Plans, tiles, transposes and epilogues are the same. If k is
// odd, the last word's lower half is zero, which adds +0 to a sum that is never -0.

// PairKernel multiplies words of pairs, for one Kernel.
type PairKernel struct {
	Name string

	// reuse is the minimum average number of multiplications per element of BF16 operands
	// for which scanning them pays.
	reuse int

	// Multiply is Kernel.Multiply for words of pairs; k counts words.
	Multiply func(k, rows int, a []float32, step, stepK int, b, c []float32, load bool)

	// Decode is Kernel.Decode from FP8 and BF16 to words of pairs. If along, k runs
	// along the rows of src, and a row has half as many words as codes. Otherwise a row of
	// words is two rows of src.
	Decode func(dst []float32, step, chunk int, src memory.Matrix, rows, cols int, along bool)

	// Smallest returns the minimum of its argument and of magnitude − 1 over x, in BF16
	// bits. The unsigned subtraction wraps zeros to the maximum, which ignores them.
	Smallest func(smallest uint16, x []uint16) uint16

	// scale multiplies the halves of words by those of scales and truncates the products to
	// BF16.
	scale func(words, scales []float32)
}

// pairChoice chooses between pairs and FP32 for a GEMM with BF16 operands or block scales.
type pairChoice struct {
	words, floats blocking
	scanned       [2]int // number of tasks that scan A, and B
	scan          func(worker, operand, task int)
	task          func(worker, task int) // scan of either operand
	exact         func() bool            // reports whether pairs give the scanned operands FP32's bits
}

// scanElements is the number of elements that a task scans.
const scanElements = 1 << 15

// choosePairs lets each run of g choose between pairs and FP32.
func (g *GEMM) choosePairs(c pairChoice) {
	c.floats = g.plan
	c.words = planBlocks(g.kernel, g.M, g.N, pool.CeilDiv(g.K, 2), DepthUnit, g.transA, g.pool.Size())
	g.pool.Reserve(c.words.scratch())
	c.task = func(worker, task int) {
		if task < c.scanned[0] {
			c.scan(worker, 0, task)
		} else {
			c.scan(worker, 1, task-c.scanned[0])
		}
	}
	g.choice = &c
}

// choose scans the operands and selects pairs or FP32.
func (g *GEMM) choose() {
	c := g.choice
	for w := range g.workers {
		g.workers[w].smallest = [2]uint16{math.MaxUint16, math.MaxUint16}
		g.workers[w].scaleLimits = [2]scaleLimits{noScales, noScales}
	}
	g.pool.Run(c.scanned[0]+c.scanned[1], c.task)
	g.pairs, g.plan = nil, c.floats
	if c.exact() {
		g.pairs, g.plan = g.kernel.Pairs, c.words
	}
}

// bf16Choice returns the choice for a GEMM with BF16 operands.
func (g *GEMM) bf16Choice() (c pairChoice) {
	operands := [2]*memory.Matrix{&g.a, &g.b}
	var rows [2]int // of a task
	for i, x := range operands {
		if x.DType == fp8.BF16 {
			rows[i] = max(1, scanElements/max(1, x.Cols))
			c.scanned[i] = pool.CeilDiv(x.Rows, rows[i])
		}
	}
	c.scan = func(worker, i, task int) {
		x, smallest := operands[i], &g.workers[worker].smallest[i]
		for r := task * rows[i]; r < min(x.Rows, (task+1)*rows[i]); r++ {
			*smallest = g.kernel.Pairs.Smallest(*smallest, x.U16[r*x.LD:][:x.Cols])
		}
	}
	c.exact = g.exactBF16Pairs
	return c
}

// MinExponentSum is the minimum sum of the operands' smallest biased exponents for which no
// product and no sum is subnormal. With exponents e and f and seven bits of mantissa, all are
// multiples of 2^(e-127-7)·2^(f-127-7), which is at least 2^-126 then.
const MinExponentSum = 2*(127+7) - 126

// exactBF16Pairs reports whether no sum is subnormal.
func (g *GEMM) exactBF16Pairs() bool {
	var exponent [2]int
	for i, d := range [2]fp8.DType{g.a.DType, g.b.DType} {
		smallest := uint16(math.MaxUint16)
		for w := range g.workers {
			smallest = min(smallest, g.workers[w].smallest[i])
		}
		switch d {
		case fp8.BF16:
			exponent[i] = (int(smallest) + 1) >> 7
		default:
			exponent[i] = 7 + int(math.Float32bits(d.Smallest())>>23) // all values are multiples of Smallest
		}
	}
	return min(exponent[0], exponent[1]) > 0 && exponent[0]+exponent[1] >= MinExponentSum
}

// bf16Table is the BF16 values of a format's first 128 codes, which for a format of eight
// bits are those without sign: the lower bytes, then the upper bytes.
type bf16Table [256]uint8

// bf16Tables holds the tables of the formats in use.
var bf16Tables [256]atomic.Pointer[bf16Table]

// bf16TableOf returns the table of a format; nil if it does not have codes of up to eight
// bits with a sign in the highest.
func bf16TableOf(d fp8.DType) *bf16Table {
	t := bf16Tables[d].Load()
	if t != nil {
		return t
	}
	f := d.Format()
	if f.Kind != fp8.Float || f.Bits > 8 || f.Bits == 8 && f.Special > fp8.IEEE {
		return nil
	}
	t = new(bf16Table)
	for code := range 128 {
		bits := math.Float32bits(d.Table()[code])
		t[code], t[128+code] = uint8(bits>>16), uint8(bits>>24)
	}
	bf16Tables[d].Store(t)
	return t
}

// pairable reports whether an operand of the format d can be decoded to pairs of BF16.
func pairable(d fp8.DType) bool { return d == fp8.BF16 || bf16TableOf(d) != nil }

// unit returns the number of which all finite values of d are multiples.
func unit(d fp8.DType) float32 { return d.Smallest() }

// bf16 returns a code's value, with its sign, in BF16.
func (t *bf16Table) bf16(code uint8) uint16 {
	upper := t[128|code] | code&0x80
	return uint16(upper)<<8 | uint16(t[code&0x7f])
}

// GoPairs is Go's pairs. It defines the results of the others.
var GoPairs = PairKernel{
	Name: "pairs in go", reuse: 32, Multiply: multiplyPairsGo, Decode: decodePairsGo, Smallest: minBF16Go, scale: scalePairsGo,
}

func minBF16Go(smallest uint16, x []uint16) uint16 {
	for _, v := range x {
		smallest = min(smallest, v&0x7fff-1)
	}
	return smallest
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

func scalePairsGo(words, scales []float32) {
	for i, s := range scales {
		x, y := math.Float32bits(words[i]), math.Float32bits(s)
		upper := math.Float32frombits(x&^0xffff) * math.Float32frombits(y&^0xffff)
		lower := math.Float32frombits(x<<16) * math.Float32frombits(y<<16)
		words[i] = pairOf(upper, lower)
	}
}

// pairOf returns the word of two values, truncated to BF16.
func pairOf(upper, lower float32) float32 {
	return math.Float32frombits(math.Float32bits(upper)&^0xffff | math.Float32bits(lower)>>16)
}

func decodePairsGo(dst []float32, step, chunk int, src memory.Matrix, rows, cols int, along bool) {
	const nr = 16
	down, right := 2, 1 // rows and columns of the codes in a word
	if along {
		down, right = 1, 2
	}
	value := func(i, j int) uint32 {
		if i >= rows || j >= cols {
			return 0
		}
		if src.DType == fp8.BF16 {
			return uint32(src.U16[i*src.LD+j])
		}
		return uint32(bf16TableOf(src.DType).bf16(src.Code(i*src.LD + j)))
	}
	for i := range pool.CeilDiv(rows, down) {
		for j := range pool.CeilDiv(cols, right) {
			upper := value(i*down, j*right)
			lower := value(i*down+down-1, j*right+right-1)
			dst[i*step+j/nr*chunk+j%nr] = math.Float32frombits(upper<<16 | lower)
		}
	}
}
