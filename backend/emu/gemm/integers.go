package gemm

import (
	"unsafe"

	"octet/backend/emu/simd"
)

// This file sums products of integers, exactly, as backend.MatMul says. The FP32 kernels, and
// those of pairs of BF16, sum up to exactProducts of them without rounding; longer sums add
// these sums in I32. So all kernels take integers, as fast as FP8.

// exactProducts is a number of products of INT8 whose sum is exact in FP32 in any order: each
// is at most 2^14 in magnitude, and integers up to 2^24 are FP32 values.
const exactProducts = 1 << (24 - 14)

// sum computes a tile's sums over the words [l, l+depth) of k: it adds them to the tile's
// earlier sums unless l is 0. part is scratch for a tile. Integer sums over more than
// exactProducts elements are I32 in the tile until l+depth is the end of k.
func (g *GEMM) sum(worker, depth, rows int, a []float32, step, stepK int, panel, tile, part []float32, l int) {
	if !g.integers || g.K <= exactProducts {
		g.multiply(worker, depth, rows, a, step, stepK, panel, tile, l > 0)
		return
	}
	run, n := g.words(exactProducts), rows*g.kernel.NR
	sums := unsafe.Slice((*int32)(unsafe.Pointer(unsafe.SliceData(tile))), n)
	if l == 0 {
		clear(sums)
	}
	for from := 0; from < depth; from += run {
		g.multiply(worker, min(run, depth-from), rows, a[from*stepK:], step, stepK, panel[from*g.kernel.NR:], part, false)
		simd.AddTruncated(sums, part[:n])
	}
	if l+depth == g.words(g.K) {
		simd.FromInt32(tile[:n], sums)
	}
}
