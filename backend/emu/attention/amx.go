package attention

import (
	"unsafe"

	"octet/backend/emu/gemm"
	"octet/backend/emu/memory"
	"octet/backend/emu/pool"
	"octet/fp8"
)

// This file has the operands of the unit AMX.
//
// # Arithmetic
//
// All products have BF16 operands and the arithmetic of gemm/amx.go. Scores and their
// gradients are computed in FP32, as without AMX; before they are multiplied by values,
// queries or keys, the weights of a row, its probabilities and the gradients of its scores are
// rounded to BF16, to nearest even. The sum of a row's weights is that of FP32 weights. The
// runs of 32 keys begin at the beginning of a block of keys, those of queries at that of a
// block of queries, which has a multiple of 32 rows.

// AMXMultiplies reports whether the unit AMX takes operands of attention: BF16, without a scale.
func AMXMultiplies(list ...*memory.Matrix) bool {
	for _, m := range list {
		if m.DType != fp8.BF16 || m.Scale != nil {
			return false
		}
	}
	return true
}

// pack is load in AMX's tiles.
func (t *tiles) pack(r rows, left, right, transposed operand) {
	count, dim := r.n*r.perRow, pool.RoundUp(r.dim, gemm.AMXRows)
	for i := 0; i < count; i += keyBlock {
		n := min(keyBlock, count-i)
		src, ld := t.wholeRows(r, i, n)
		n = pool.RoundUp(n, gemm.AMXRows)
		if left.x != nil {
			t.amx.Pack(left.at(i, 0).tiles(), src, ld, n, dim, true, false)
		}
		if transposed.x != nil {
			t.amx.Pack(transposed.at(i, 0).tiles(), src, ld, n, dim, true, true)
		}
		if right.x != nil {
			t.amx.Pack(right.at(0, i).tiles(), src, ld, n, dim, false, true)
		}
	}
}

// wholeRows returns n of the rows, from the i-th on, and their leading dimension. If they do
// not fill tiles or do not follow one another in memory, it copies them, with zeros up to
// whole tiles.
func (t *tiles) wholeRows(r rows, i, n int) (src []uint16, ld int) {
	if r.perRow == 1 && n%gemm.AMXRows == 0 && r.dim%gemm.AMXRows == 0 {
		return r.m.U16[(r.row+i)*r.m.LD+r.col:], r.m.LD
	}
	ld = pool.RoundUp(r.dim, gemm.AMXRows)
	for k := range n {
		at := (r.row+(i+k)/r.perRow)*r.m.LD + r.col + (i+k)%r.perRow*r.dim
		row := t.words[k*ld:][:ld]
		clear(row[copy(row, r.m.U16[at:at+r.dim]):])
	}
	clear(t.words[n*ld : pool.RoundUp(n, gemm.AMXRows)*ld])
	return t.words, ld
}

// roundToBF16 is round for AMX.
func (t *tiles) roundToBF16(s sheet, n, k int, left, transposed operand) {
	whole, width := pool.RoundUp(n, gemm.AMXRows), pool.RoundUp(k, gemm.AMXDepth)
	if transposed.x != nil {
		for i := n; i < whole; i++ {
			clear(s.row(i, width)) // they are added up
		}
	}
	fp8.EncodeBF16(t.words[:whole*s.ld], s.x[:whole*s.ld]) // with what is between the rows
	if left.x != nil {
		t.amx.Pack(left.tiles(), t.words, s.ld, whole, width, true, false)
	}
	if transposed.x != nil {
		t.amx.Pack(transposed.tiles(), t.words, s.ld, whole, width, false, false)
	}
}

// words takes n words.
func (c *carver) words(n int) []uint16 { return words(c.take((n + 1) / 2)) }

func words(x []float32) []uint16 {
	return unsafe.Slice((*uint16)(unsafe.Pointer(unsafe.SliceData(x))), 2*len(x))
}

// tiles takes an operand of n rows or columns along k. Two words are an element: a panel of
// sixteen rows has 8·k of them, a tile of sixteen rows and 32 along k 256.
func (c *carver) tiles(n, k int) operand {
	words, panel := gemm.AMXWords(n, k)
	return operand{c.take(words / 2), panel / 32, 8}
}

// tiles returns o for gemm.
func (o operand) tiles() gemm.AMXTiles { return gemm.AMXTiles{Words: words(o.x), Panel: 32 * o.step} }
