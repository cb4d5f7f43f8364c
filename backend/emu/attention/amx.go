package attention

import (
	"unsafe"

	"octet/backend/emu/gemm"
	"octet/backend/emu/memory"
	"octet/backend/emu/pool"
)

// This file has the operands of the AMX unit.
//
// # Arithmetic
//
// All matrix products have BF16 operands and the arithmetic of gemm/amx.go. The softmax and its
// gradient are FP32, as without AMX. The weights P (unnormalized in the forward) and dS are
// rounded to BF16, to nearest even, before they are multiplied by V, dO, Q or K. The sum of a
// row's weights adds the unrounded ones. The runs of 32 keys begin with a block of keys,
// those of queries with a block of queries, which has a multiple of 32 rows.

// AMXMultiplies reports whether the unit AMX takes operands of attention: BF16, without a scale.
func AMXMultiplies(list ...*memory.Matrix) bool {
	for _, m := range list {
		if !isBF16(m) {
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
			t.amx.Pack(left.at(i, 0).packed(), src, ld, n, dim, true, false)
		}
		if transposed.x != nil {
			t.amx.Pack(transposed.at(i, 0).packed(), src, ld, n, dim, true, true)
		}
		if right.x != nil {
			t.amx.Pack(right.at(0, i).packed(), src, ld, n, dim, false, true)
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
		row := t.bf16[k*ld:][:ld]
		clear(row[copy(row, r.m.U16[at:at+r.dim]):])
	}
	clear(t.bf16[n*ld : pool.RoundUp(n, gemm.AMXRows)*ld])
	return t.bf16, ld
}

// packTransposed packs the transpose of n×k weights, or gradients, as a left operand.
func (t *tiles) packTransposed(o operand, s sheet, n, k int) {
	whole, width := pool.RoundUp(n, gemm.AMXRows), pool.RoundUp(k, gemm.AMXDepth)
	for i := n; i < whole; i++ {
		t.clearFirst(s, i, width) // k of the operand runs over these rows; stale NaN · 0 is NaN
	}
	t.amx.Pack(o.packed(), asBF16(s.x), 2*s.ld, whole, width, false, false)
}

// bf16 takes n elements of BF16. A float32 of scratch holds two.
func (c *carver) bf16(n int) []uint16 { return asBF16(c.take((n + 1) / 2)) }

func asBF16(x []float32) []uint16 {
	return unsafe.Slice((*uint16)(unsafe.Pointer(unsafe.SliceData(x))), 2*len(x))
}

// packed takes an operand of n rows or columns along k: a panel of sixteen has 8·k float32, a
// tile of sixteen by 32 along k 256.
func (c *carver) packed(n, k int) operand {
	elems, panel := gemm.AMXElems(n, k)
	return operand{c.take(elems / 2), panel / 32, 8}
}

// packed returns o for gemm.
func (o operand) packed() gemm.AMXTiles {
	if o.stepK == 0 {
		return gemm.AMXRowMajor(asBF16(o.x), 2*o.step)
	}
	return gemm.AMXTiles{Elems: asBF16(o.x), Panel: 32 * o.step}
}
