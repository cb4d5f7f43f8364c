package gemm

import (
	"math"

	"octet/backend/emu/memory"
	"octet/backend/emu/pool"
	"octet/fp8"
)

// This file computes GEMMs of FP8 and BF16 operands with AVX-512's VDPBF16PS, which
// multiplies pairs of BF16. The instruction adds to an accumulator the product of the
// upper halves of two words, then the product of the lower halves, and rounds after each.
// With element l of k in the upper half and element l+1 in the lower, it computes two
// steps of the chain that gemm.go defines, bit for bit, except that it flushes subnormals
// to zero. FP8 values are exact in BF16, and sums of their products are multiples of
// 2^-32, never subnormal. BF16 operands are scanned in each run: if a sum could be
// subnormal, that run uses FP32.
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

	// Multiply is Kernel.multiply for words of pairs; k counts words.
	Multiply func(k, rows int, a []float32, step, stepK int, b, c []float32, load bool)

	// decode is Kernel.decode from FP8 and BF16 to words of pairs. If along, k runs
	// along the rows of src, and a row has half as many words as codes. Otherwise a row of
	// words is two rows of src.
	decode func(dst []float32, step, chunk int, src memory.Matrix, rows, cols int, along bool)

	// smallest returns the minimum of its argument and of magnitude − 1 over x, in BF16
	// bits. The unsigned subtraction wraps zeros to the maximum, which ignores them.
	smallest func(smallest uint16, x []uint16) uint16
}

// pairChoice chooses between pairs and FP32 for a GEMM with BF16 operands.
type pairChoice struct {
	pairs         *PairKernel
	words, floats blocking
	scanned       [2]int // number of tasks that scan A, and B
	scan          func(worker, task int)
}

// scanElements is the number of elements that a task scans.
const scanElements = 1 << 15

// choosePairs lets each run of g choose between pairs and FP32.
func (g *GEMM) choosePairs(pairs *PairKernel) {
	c := &pairChoice{pairs: pairs, floats: g.plan}
	c.words = planBlocks(g.kernel, g.M, g.N, pool.CeilDiv(g.K, 2), DepthUnit, g.transA, g.pool.Size())
	g.pool.Reserve(c.words.scratch())
	operands := [2]*memory.Matrix{&g.a, &g.b}
	var rows [2]int // of a task
	for i, x := range operands {
		if x.DType == fp8.BF16 {
			rows[i] = max(1, scanElements/max(1, x.Cols))
			c.scanned[i] = pool.CeilDiv(x.Rows, rows[i])
		}
	}
	c.scan = func(worker, task int) {
		i := 0
		if task >= c.scanned[0] {
			i, task = 1, task-c.scanned[0]
		}
		x, smallest := operands[i], &g.workers[worker].smallest[i]
		for r := task * rows[i]; r < min(x.Rows, (task+1)*rows[i]); r++ {
			*smallest = pairs.smallest(*smallest, x.U16[r*x.LD:][:x.Cols])
		}
	}
	g.choice = c
}

// choose scans the operands and selects pairs or FP32. With smallest biased exponents e
// and f and seven bits of mantissa, all products and sums are multiples of
// 2^(e-127-7)·2^(f-127-7). If that is at least 2^-126, no result is subnormal.
func (g *GEMM) choose() {
	const enough = 2*(127+7) - 126
	c := g.choice
	workers := g.workers
	for w := range workers {
		workers[w].smallest = [2]uint16{math.MaxUint16, math.MaxUint16}
	}
	g.pool.Run(c.scanned[0]+c.scanned[1], c.scan)
	var exponent [2]int
	for i, d := range [2]fp8.DType{g.a.DType, g.b.DType} {
		smallest := uint16(math.MaxUint16)
		for w := range workers {
			smallest = min(smallest, workers[w].smallest[i])
		}
		switch d {
		case fp8.BF16:
			exponent[i] = (int(smallest) + 1) >> 7
		case fp8.E5M2:
			exponent[i] = 127 + 7 - 16 // E5M2 values are multiples of 2^-16, E4M3 values of 2^-9
		default:
			exponent[i] = 127 + 7 - 9
		}
	}
	g.pairs, g.plan = nil, c.floats
	if min(exponent[0], exponent[1]) > 0 && exponent[0]+exponent[1] >= enough {
		g.pairs, g.plan = c.pairs, c.words
	}
}

// bf16Table is the BF16 values of an FP8 format's 128 codes without sign: the lower
// bytes, then the upper bytes.
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

// bf16 returns a code's value, with its sign, in BF16.
func (t *bf16Table) bf16(code uint8) uint16 {
	upper := t[128|code] | code&0x80
	return uint16(upper)<<8 | uint16(t[code&0x7f])
}

// GoPairs is Go's pairs. It defines the results of the others.
var GoPairs = PairKernel{
	Name: "pairs in go", reuse: 32, Multiply: multiplyPairsGo, decode: decodePairsGo, smallest: minBF16Go,
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
		return uint32(bf16Tables[src.DType].bf16(src.U8[i*src.LD+j]))
	}
	for i := range pool.CeilDiv(rows, down) {
		for j := range pool.CeilDiv(cols, right) {
			upper := value(i*down, j*right)
			lower := value(i*down+down-1, j*right+right-1)
			dst[i*step+j/nr*chunk+j%nr] = math.Float32frombits(upper<<16 | lower)
		}
	}
}
