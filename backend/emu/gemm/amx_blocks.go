package gemm

import (
	"octet/backend/emu/memory"
	"octet/backend/emu/pool"
	"octet/fp8"
)

// AMXBlocks multiplies small matrices in AMX's arithmetic, which amx.go defines. Its callers
// pack the operands and keep them in scratch, as attention does.
type AMXBlocks struct{ kernel *amxKernel }

// AMXRows is the number of rows, and of columns, of a block that Multiply stores. AMXDepth
// is the length of the runs that k is cut into.
const (
	AMXRows  = amxOut
	AMXDepth = amxDepth
)

// AMXKernels returns the versions that this process can run, the fastest first; all give
// the same bits.
func AMXKernels() []*AMXBlocks {
	var list []*AMXBlocks
	for _, k := range amxKernels() {
		list = append(list, &AMXBlocks{k})
	}
	return list
}

// Name returns the name of b's kernel.
func (b *AMXBlocks) Name() string { return b.kernel.name }

// AMXElems returns the number of elements of a packed operand of n rows (a left one) or
// columns (a right one) along k, and those of one of its panels.
func AMXElems(n, k int) (words, panel int) {
	panel = amxWidth * pool.RoundUp(k, amxDepth)
	return pool.RoundUp(n, amxOut) / amxWidth * panel, panel
}

// Pack packs the rows of src, BF16, ld elements apart, as a left or a right operand: k runs
// along the rows of src (along) or down its columns. rows and cols, of src, are multiples of
// AMXRows.
func (b *AMXBlocks) Pack(dst AMXTiles, src []uint16, ld, rows, cols int, along, right bool) {
	m := memory.Matrix{DType: fp8.BF16, U16: src, Rows: rows, Cols: cols, LD: ld}
	if along {
		for i := 0; i < rows; i += amxWidth {
			b.kernel.pack(dst.Elems[i/amxWidth*dst.Panel:], amxTile, m.Sub(i, 0), along, right, cols/amxDepth)
		}
		return
	}
	for l := 0; l < rows; l += amxDepth {
		b.kernel.pack(dst.Elems[l/amxDepth*amxTile:], dst.Panel, m.Sub(l, 0), along, right, cols/amxWidth)
	}
}

// Multiply computes c = x·y, or c += x·y if load, for AMXRows rows of c, which are ld elements
// apart. It stores cols columns, rounded up to a multiple of AMXRows, and sums over k
// elements, rounded up to a multiple of AMXDepth.
func (b *AMXBlocks) Multiply(c []float32, ld, cols, k int, x, y AMXTiles, load bool) {
	b.kernel.multiply(pool.CeilDiv(k, amxDepth), pool.CeilDiv(cols, amxOut), x, y, amxSums{c, ld, amxOut}, load, false)
}
