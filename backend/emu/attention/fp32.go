package attention

import (
	"octet/backend/emu/gemm"
	"octet/backend/emu/simd"
)

// This file multiplies small row-major FP32 matrices in a worker's scratch, with the GEMM's
// kernels. Where a kernel has a multiply in place, no panel is packed and no tile is
// copied.

// multiplyInto is gemm.Kernel's Multiply with b[l,j] at l·ldb + j and c[i,j] at i·ldc + j. It
// stores rows rows, at most mr, and cols columns, rounded up to a multiple of nr.
type multiplyInto func(k, rows, cols int, a *float32, step, stepK int, b *float32, ldb int, c *float32, ldc int, load bool)

// multiplyPanel is gemm.Kernel's Multiply.
type multiplyPanel func(k, rows int, a []float32, step, stepK int, b, c []float32, load bool)

// stageKeys is how many keys are decoded at a time before they are transposed: few
// enough to stay in the first-level cache.
const stageKeys = 32

// fp32Scratch is a worker's scratch for a unit of FP32.
type fp32Scratch struct {
	inPlace       multiplyInto
	pairsInPlace  multiplyInto // for words of pairs
	panel, corner []float32    // [depth, nr] and [mr, nr], if inPlace is nil
	stage         sheet        // [stageKeys, width]
}

func newFP32Scratch(kernel *gemm.Kernel, ld, depth int, c *carver) fp32Scratch {
	s := fp32Scratch{inPlace: inPlace(kernel), pairsInPlace: pairsInPlace(kernel), stage: c.sheet(kernel.MR, stageKeys, ld)}
	if s.inPlace == nil {
		s.panel, s.corner = c.take(depth*kernel.NR), c.take(kernel.MR*kernel.NR)
	}
	return s
}

// multiply is matMul for at most mr rows by a kernel's Multiply, if it has none in place. As
// with one, each element is the chain c[i,j] = fma(a[i,l], b[l,j], c[i,j]), l ascending.
func (t *tiles) multiply(kernel multiplyPanel, c sheet, rows, cols, k int, a, b operand, add bool) {
	for j := 0; j < cols; j += t.nr {
		for l := range k {
			copy(t.panel[l*t.nr:][:t.nr], b.x[l*b.stepK+j:])
		}
		to := c.at(0, j)
		if add {
			for r := range rows {
				copy(t.corner[r*t.nr:], to.row(r, t.nr))
			}
		}
		kernel(k, rows, a.x, a.step, a.stepK, t.panel, t.corner, add)
		for r := range rows {
			copy(to.row(r, t.nr), t.corner[r*t.nr:])
		}
	}
}

// decode is load in FP32. left and right are the same memory if both are wanted.
func (t *tiles) decode(r rows, left, right, transposed operand) {
	to := sheet{left.x, left.step}
	if left.x == nil {
		to = sheet{right.x, right.stepK}
	}
	if to.x != nil {
		t.decodeRows(to, r)
		if transposed.x != nil {
			t.transpose(transposed.x, transposed.stepK, to, r.n, r.dim)
		}
		return
	}
	for i := 0; i < r.n; i += stageKeys {
		part := r
		part.row, part.n = r.row+i, min(stageKeys, r.n-i)
		t.decodeRows(t.stage, part)
		t.transpose(transposed.x[i:], transposed.stepK, t.stage, part.n, r.dim)
	}
}

// decodeRows writes rows as FP32.
func (t *tiles) decodeRows(dst sheet, r rows) {
	for g := range r.perRow {
		to, step := dst.x[g*dst.ld:], r.perRow*dst.ld
		t.kernel.Decode(to, step, t.nr, r.m.Sub(r.row, r.col+g*r.dim), r.n, r.dim)
		if r.m.Scale == nil {
			continue
		}
		for i := range r.n {
			simd.Scale(to[i*step:][:r.dim], r.m.Scale[0])
		}
	}
}

// transpose writes the transpose of the first n rows of src, of length k, to dst, ld elements
// from row to row.
func (t *tiles) transpose(dst []float32, ld int, src sheet, n, k int) {
	for i := 0; i < n; i += t.kernel.TransposeRows {
		t.kernel.Transpose(dst[i:], ld, src.x[i*src.ld:], src.ld, k)
	}
}
