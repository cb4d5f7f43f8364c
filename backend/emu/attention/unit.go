package attention

import (
	"octet/backend/emu/gemm"
	"octet/backend/emu/memory"
	"octet/backend/emu/pool"
	"octet/backend/emu/simd"
	"octet/fp8"
)

// Unit multiplies the blocks of attention: a GEMM kernel with FP32 operands (fp32.go) or AMX with
// BF16 operands (amx.go).
type Unit struct {
	kernel *gemm.Kernel
	pairs  *gemm.PairKernel // of kernel; nil: none
	amx    *gemm.AMXBlocks  // nil: FP32

	mr        int // rows that a multiplication computes at a time
	nr        int // the number of columns is rounded up to a multiple of it
	depthUnit int // a power of two: k begins at a multiple of it and is rounded up to a multiple
}

// FP32 returns the unit that multiplies with a GEMM kernel.
func FP32(kernel *gemm.Kernel) Unit {
	return Unit{kernel: kernel, pairs: kernel.Pairs, mr: kernel.MR, nr: kernel.NR, depthUnit: 1}
}

// AMX returns the unit that multiplies in AMX's arithmetic; AMXMultiplies says which operands.
func AMX(blocks *gemm.AMXBlocks) Unit {
	return Unit{amx: blocks, mr: gemm.AMXRows, nr: gemm.AMXRows, depthUnit: gemm.AMXDepth}
}

// maxTileRows is at least the mr of any unit.
const maxTileRows = gemm.AMXRows

// zeroed returns n rounded up to the number of weights that matMul reads, and of which simd's
// kernels, which store sixteen at a time, set those from n on to 0.
func (u *Unit) zeroed(n int) int {
	group := max(16, u.depthUnit)
	return (n + group - 1) &^ (group - 1)
}

// ld returns the leading dimension of a matrix of cols columns in scratch. One extra cache
// line keeps it from being a power of two, which would map all rows to the same cache set.
func (u *Unit) ld(cols int) int { return pool.RoundUp(cols, u.nr) + pool.CacheLine/4 }

// operand is an operand of matMul, in the layout of the unit; the zero value is none. Row i of
// a left operand, or column i of a right one, begins i·step elements into x, and l along k
// l·stepK further; step is 1 in right operands of FP32. In AMX's tiles both i and l are
// multiples of 32. A left operand of AMX with a stepK of 0 has rows of BF16; its l is 0.
type operand struct {
	x           []float32
	step, stepK int
}

// at returns o from i and from l along k on.
func (o operand) at(i, l int) operand {
	return operand{o.x[i*o.step+l*o.stepK:], o.step, o.stepK}
}

// sheet is a row-major FP32 matrix in scratch, ld elements from row to row. It has room for
// units, which read and write columns up to a multiple of nr, and read mr rows from any
// row on. With AMX, weigh and gradients replace a row by BF16 codes, from its first byte on.
type sheet struct {
	x  []float32
	ld int
}

// at returns s from row i and column j on.
func (s sheet) at(i, j int) sheet { return sheet{s.x[i*s.ld+j:], s.ld} }

// row returns the first n elements of row i.
func (s sheet) row(i, n int) []float32 { return s.x[i*s.ld:][:n] }

// rows are rows of dim elements of m: perRow side by side, from column col on, in each of n
// rows from row on.
type rows struct {
	m                        *memory.Matrix
	row, col, n, perRow, dim int
}

// isBF16 reports whether m is BF16 without a scale.
func isBF16(m *memory.Matrix) bool { return m.DType == fp8.BF16 && m.Scale == nil }

// tiles multiplies with one unit, in one worker's scratch.
type tiles struct {
	Unit
	fp32Scratch
	bf16    []uint16 // AMX: keyBlock rows in whole tiles
	visible [maxTileRows]int
	prefetcher
}

// newTiles takes scratch for the matrix products of blocks of n rows, or of keyBlock keys, of dim
// elements.
func newTiles(u Unit, dim, n int, c *carver) tiles {
	t := tiles{Unit: u}
	if u.amx != nil {
		t.bf16 = c.bf16(keyBlock * pool.RoundUp(dim, gemm.AMXRows))
	} else {
		t.fp32Scratch = newFP32Scratch(u.kernel, u.ld(dim), max(dim, n, keyBlock), c)
	}
	return t
}

// takeLeft, takeRight and takeBoth take operands from scratch: a left operand of n rows along
// k, a right one of n columns, or both for the same n×k matrix, which is k×n as the right one.
func (t *tiles) takeLeft(c *carver, n, k int) operand {
	if t.amx != nil {
		return c.packed(n, k)
	}
	s := c.sheet(t.mr, n, t.ld(k))
	return operand{s.x, s.ld, 1}
}

func (t *tiles) takeRight(c *carver, n, k int) operand {
	if t.amx != nil {
		return c.packed(n, k)
	}
	s := c.sheet(t.mr, pool.RoundUp(k, gemm.DepthUnit), t.ld(n))
	return operand{s.x, 1, s.ld}
}

func (t *tiles) takeBoth(c *carver, n, k int) (left, right operand) {
	left = t.takeLeft(c, n, k)
	if t.amx != nil {
		return left, t.takeRight(c, k, n)
	}
	return left, operand{left.x, 1, left.step}
}

// takeScores takes a matrix of scores, [n, k], and the left operand that weigh, or gradients,
// makes of it.
func (t *tiles) takeScores(c *carver, n, k int) (s sheet, left operand) {
	s = c.sheet(t.mr, n, t.ld(k))
	if t.amx == nil {
		return s, operand{s.x, s.ld, 1}
	}
	return s, operand{s.x, s.ld, 0}
}

// takeTransposed takes the left operand for the transpose of scores, [n, k]. In FP32 it is the
// memory of s; with AMX packTransposed writes it.
func (t *tiles) takeTransposed(c *carver, s sheet, n, k int) operand {
	if t.amx == nil {
		return operand{s.x, 1, s.ld}
	}
	return t.takeLeft(c, k, n)
}

// load loads rows of a matrix as operands: left with the rows of the matrix, right with its
// rows along k, and transposed, a right one, with its columns along k. Each may be none.
func (t *tiles) load(r rows, left, right, transposed operand) {
	if t.amx != nil {
		t.pack(r, left, right, transposed)
	} else {
		t.decode(r, left, right, transposed)
	}
}

// weigh turns scores into weights, in place: FP32, or BF16 with AMX. See simd.WeighRows.
func (t *tiles) weigh(scores sheet, width int, visible []int, scale float32, largest, total []float32) {
	if t.amx != nil {
		simd.WeighRowsBF16(scores.x, scores.ld, t.zeroed(width), visible, scale, largest, total)
	} else {
		simd.WeighRows(scores.x, scores.ld, t.zeroed(width), visible, scale, largest, total)
	}
}

// gradients turns scores into weights, and the gradients of weights into those of scores, in
// place: FP32, or BF16 with AMX. See simd.ScoreGradientRows.
func (t *tiles) gradients(p, ds sheet, width int, visible []int, scale2, scale float32, lse2, delta []float32) {
	if t.amx != nil {
		simd.ScoreGradientRowsBF16(p.x, ds.x, p.ld, t.zeroed(width), visible, scale2, scale, lse2, delta)
	} else {
		simd.ScoreGradientRows(p.x, ds.x, p.ld, t.zeroed(width), visible, scale2, scale, lse2, delta)
	}
}

// clearFirst sets the first n weights, or gradients of scores, of row i to 0. It follows weigh
// or gradients.
func (t *tiles) clearFirst(s sheet, i, n int) {
	if t.amx != nil {
		clear(asBF16(s.row(i, n))[:n])
	} else {
		clear(s.row(i, n))
	}
}

// matMul computes c = a·b, or c += a·b if add, with a from its row i on and both from l along k
// on. c is rows×cols; rows, cols and k are at least 1. Meanwhile it prefetches.
func (t *tiles) matMul(c sheet, rows, cols, k int, a *operand, i int, b *operand, l int, add bool) {
	t.prefetchNext()
	x, y := a.x[i*a.step+l*a.stepK:], b.x[l*b.stepK:]
	for r := 0; r < rows; r += t.mr {
		x, to := x[r*a.step:], c.x[r*c.ld:]
		switch {
		case t.inPlace != nil:
			t.inPlace(k, min(t.mr, rows-r), cols, &x[0], a.step, a.stepK, &y[0], b.stepK, &to[0], c.ld, add)
		case t.amx != nil:
			t.amx.Multiply(to, c.ld, cols, k, operand{x, a.step, a.stepK}.packed(), operand{y, b.step, b.stepK}.packed(), add)
		default:
			t.multiply(t.kernel.Multiply, sheet{to, c.ld}, min(t.mr, rows-r), cols, k, operand{x, a.step, a.stepK}, operand{y, b.step, b.stepK}, add)
		}
	}
}

// carver divides a worker's scratch into pieces on cache lines. Without scratch it only
// counts, so that the same code computes the size.
type carver struct {
	scratch []float32
	used    int
}

func (c *carver) take(n int) []float32 {
	from := c.used
	c.used += pool.RoundUp(n, pool.CacheLine/4)
	if c.scratch == nil {
		return nil
	}
	return c.scratch[from : from+n]
}

// sheet takes a matrix of n rows, with room for mr rows after any.
func (c *carver) sheet(mr, n, ld int) sheet { return sheet{c.take((n + mr) * ld), ld} }
