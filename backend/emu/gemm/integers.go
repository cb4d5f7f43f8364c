package gemm

import (
	"encoding/binary"
	"math"

	"octet/backend/emu/memory"
	"octet/backend/emu/simd"
	"octet/fp8"
)

// This file sums products of integers, exactly, in I32, as backend.MatMul says.
//
// Instructions that multiply integers take two or four neighbours in k at once and add their
// products. So blocks of op(A) and op(B) consist of words of two integers of 16 bits, or of
// four of 8 bits, instead of floats, and have fewer along k. Plans, tiles, transposes and
// epilogues are the same; tiles hold I32 until the end of k. Zeros fill the last word of a
// row. Sums wrap, so that only the whole sum must fit.
//
// FP32 kernels sum the integers of kernels without an IntegerKernel, and of block scales that
// change inside a word. They sum up to exactProducts without rounding; longer sums add these
// sums in I32.

// IntegerKernel multiplies words of integers, for one Kernel.
type IntegerKernel struct {
	Name string
	size int // integers in a word; the first is in the lowest bits

	// Multiply is Kernel.Multiply for words; k counts words, and c holds I32. If contiguous,
	// stepK is always 1.
	Multiply   func(k, rows int, a []float32, step, stepK int, b, c []float32, load bool)
	contiguous bool

	// along writes the words of INT8 codes that are neighbours in k, a multiple of 16.
	along func(dst []float32, codes []uint8)

	// down writes NR words; word j has the codes of column j of size rows, ld apart.
	down func(dst []float32, codes []uint8, ld int)

	// offset adds 128 to the integers of words, for instructions whose left operand is
	// unsigned; Multiply corrects for it. nil: the left operand is signed.
	offset func(words []float32)
}

// useIntegers lets g multiply words of integers, unless kernel is nil.
func (g *GEMM) useIntegers(kernel *IntegerKernel) {
	if g.integers = kernel; kernel == nil || inBytes(g.a) && inBytes(g.b) {
		return
	}
	for w := range g.workers {
		g.workers[w].codes = make([]uint8, kernel.size*max(g.M, g.N, g.K))
	}
}

// integerUnit returns the unit of blocks of k for scales that change every run elements, in
// words. It stops the use of words if scales change inside one; unit is then the result.
func (g *GEMM) integerUnit(run, unit int) int {
	switch {
	case g.integers == nil || run == g.K:
		return unit
	case run%g.integers.size != 0:
		g.integers = nil
		return unit
	}
	words := DepthUnit
	for words%(run/g.integers.size) != 0 {
		words += DepthUnit
	}
	return words
}

// exactProducts is a number of products of INT8 whose sum is exact in FP32 in any order: each
// is at most 2^14 in magnitude, and integers up to 2^24 are FP32 values.
const exactProducts = 1 << (24 - 14)

// sum computes a tile's sums over the words [l, l+depth) of k: it adds them to the tile's
// earlier sums unless l is 0. part is scratch for a tile. Sums of integers are FP32 only from
// the end of k on.
func (g *GEMM) sum(worker, depth, rows int, a []float32, step, stepK int, panel, tile, part []float32, l int) {
	if g.integers == nil && g.a.DType.IsInteger() && g.K > exactProducts {
		g.sumFloats(worker, depth, rows, a, step, stepK, panel, tile, part, l)
	} else {
		g.multiply(worker, depth, rows, a, step, stepK, panel, tile, l > 0)
		if g.integers == nil {
			return
		}
	}
	if l+depth == g.words(g.K) {
		fromIntegers(tile[:rows*g.kernel.NR])
	}
}

// sumFloats is sum by FP32 kernels.
func (g *GEMM) sumFloats(worker, depth, rows int, a []float32, step, stepK int, panel, tile, part []float32, l int) {
	n := rows * g.kernel.NR
	sums := view[int32](tile[:n])
	if l == 0 {
		clear(sums)
	}
	for from := 0; from < depth; from += exactProducts {
		g.multiply(worker, min(exactProducts, depth-from), rows, a[from*stepK:], step, stepK, panel[from*g.kernel.NR:], part, false)
		simd.AddTruncated(sums, part[:n])
	}
}

// fromIntegers converts I32 to FP32 in place.
func fromIntegers(x []float32) { simd.FromInt32(x, view[int32](x)) }

// decodeIntegers is decode to words of integers.
func (g *GEMM) decodeIntegers(worker int, dst []float32, step, chunk int, src memory.Matrix, rows, cols int, along bool) {
	q, height := g.integers, 1 // rows of codes of a row of words
	if !along {
		height = q.size
	}
	for i := 0; i < rows && cols > 0; i += height {
		n := min(height, rows-i)
		codes, ld := src.U8, src.LD
		if inBytes(src) {
			codes = codes[i*ld:]
		} else {
			codes, ld = g.workers[worker].codes, cols
			for r := range n {
				widen4(codes[r*cols:][:cols], src, i+r)
			}
		}
		if to := dst[i/height*step:]; along {
			q.wordsAlong(to, codes[:cols])
		} else {
			q.wordsDown(to, g.kernel.NR, chunk, codes, ld, n, cols)
		}
	}
}

// transposeA is decodeA for a transposed A, with the words of a row of op(A) side by side.
func (g *GEMM) transposeA(worker int, dst, tmp []float32, i, l, rows, depth int) (step, stepK int) {
	p, height := &g.plan, g.kernel.TransposeRows
	for w := 0; w < depth; w += height {
		from, count := g.elements(l+w, height)
		g.decodeIntegers(worker, tmp, p.lda, g.kernel.NR, g.a.Sub(from, i), count, rows, false)
		g.kernel.Transpose(dst[w:], p.ldt, tmp, p.lda, rows)
	}
	return p.ldt, 1
}

// wordsAlong writes the words of codes that are neighbours in k.
func (q *IntegerKernel) wordsAlong(dst []float32, codes []uint8) {
	at := len(codes) &^ 15
	if at > 0 {
		q.along(dst, codes[:at])
	}
	for ; at < len(codes); at += q.size {
		dst[at/q.size] = word(codes[at:], 1, min(q.size, len(codes)-at), q.size)
	}
}

// wordsDown writes cols words of the codes of rows rows each, at most size. Runs of nr words
// are chunk apart.
func (q *IntegerKernel) wordsDown(dst []float32, nr, chunk int, codes []uint8, ld, rows, cols int) {
	j := 0
	if rows == q.size {
		for ; j+nr <= cols; j += nr {
			q.down(dst[j/nr*chunk:], codes[j:], ld)
		}
	}
	for ; j < cols; j++ {
		dst[j/nr*chunk+j%nr] = word(codes[j:], ld, rows, q.size)
	}
}

// word returns the word of n codes of INT8, step apart; size integers fill a word.
func word(codes []uint8, step, n, size int) float32 {
	bits, w := 32/size, uint32(0)
	for e := range n {
		w |= uint32(int8(codes[e*step])) & (1<<bits - 1) << (e * bits)
	}
	return math.Float32frombits(w)
}

// copyCodes is along for words of four.
func copyCodes(dst []float32, codes []uint8) {
	copy(view[uint8](dst), codes)
}

// inBytes reports whether the codes of x, integers, are INT8.
func inBytes(x memory.Matrix) bool { return x.DType.Format().Bits == 8 }

// widen4 writes the codes of row i of src, integers of four bits, as INT8.
func widen4(dst []uint8, src memory.Matrix, i int) {
	at := 0
	if src.DType.Size() == 0 {
		packed := src.U8[i*src.LD/2:]
		for ; at+8 <= len(dst); at += 8 {
			x := uint64(binary.LittleEndian.Uint32(packed[at/2:]))
			x = (x | x<<16) & 0x0000ffff0000ffff
			x = (x | x<<8) & 0x00ff00ff00ff00ff
			x = (x | x<<4) & 0x0f0f0f0f0f0f0f0f
			x |= x & 0x0808080808080808 * (0xf0 / 8) // the sign, in the upper half of a byte
			binary.LittleEndian.PutUint64(dst[at:], x)
		}
		fp8.Unpack4(dst[at:], packed[at/2:])
	} else {
		copy(dst, src.U8[i*src.LD:])
	}
	for ; at < len(dst); at++ {
		dst[at] = uint8(int8(dst[at]<<4) >> 4)
	}
}

// goIntegers is Go's integers. It defines the results of the others.
var goIntegers = IntegerKernel{
	Name: "integers in go", size: 4, Multiply: multiplyIntegersGo,
	along: copyCodes,
	down: func(dst []float32, codes []uint8, ld int) {
		for j := range Go.NR {
			dst[j] = word(codes[j:], ld, 4, 4)
		}
	},
}

func multiplyIntegersGo(k, rows int, a []float32, step, stepK int, b, c []float32, load bool) {
	const mr, nr = 4, 16
	sums := view[int32](c)
	for i := range min(rows, mr) {
		row := sums[i*nr:][:nr]
		if !load {
			clear(row)
		}
		for l := range k {
			x := math.Float32bits(a[i*step+l*stepK])
			for j, w := range b[l*nr:][:nr] {
				y := math.Float32bits(w)
				for e := 0; e < 32; e += 8 {
					row[j] += int32(int8(x>>e)) * int32(int8(y>>e))
				}
			}
		}
	}
}
