package attention

import (
	"unsafe"

	"octet/backend/emu/cast"
	"octet/backend/emu/gemm"
	"octet/backend/emu/memory"
	"octet/backend/emu/pool"
	"octet/backend/emu/simd"
)

// This file multiplies small row-major FP32 matrices in a worker's scratch, for attention,
// with the GEMM's kernels. Where a kernel has a multiply in place, no panel is packed and
// no tile is copied.

// sheet is a row-major matrix in scratch, ld elements from row to row. It has room for
// kernels, which read and write columns up to a multiple of nr, and read mr rows from any
// row on.
type sheet struct {
	x  []float32
	ld int
}

// at returns s from row i and column j on.
func (s sheet) at(i, j int) sheet { return sheet{s.x[i*s.ld+j:], s.ld} }

// row returns the first n elements of row i.
func (s sheet) row(i, n int) []float32 { return s.x[i*s.ld:][:n] }

// maxTileRows is at least the mr of any kernel.
const maxTileRows = 16

// multiplyInto is gemm.Kernel's Multiply with b[l,j] at l·ldb + j and c[i,j] at i·ldc + j. It
// stores rows rows, at most mr, and cols columns, rounded up to a multiple of nr.
type multiplyInto func(k, rows, cols int, a []float32, step, stepK int, b []float32, ldb int, c []float32, ldc int, load bool)

// tiles multiplies with one kernel, in one worker's scratch.
type tiles struct {
	*gemm.Kernel
	inPlace       multiplyInto
	panel, corner []float32 // [depth, nr] and [mr, nr], if inPlace is nil

	expected   [8]rowsInMemory
	prefetched int // rows of expected[0] that are prefetched
}

// rowsInMemory are rows of a matrix.
type rowsInMemory struct {
	first             unsafe.Pointer
	step, rows, bytes int
}

// prefetchRows is the number of rows that each matMul prefetches: a matMul of mr rows takes
// longer than their way from memory.
const prefetchRows = 16

// expect registers rows×cols elements of m, from (row, col) on, to be read or written
// soon; each matMul prefetches some of their rows. The rows of one head are too short for
// the hardware prefetcher. expect ignores elements if all entries are in use.
func (t *tiles) expect(m *memory.Matrix, row, col, rows, cols int) {
	for i := range t.expected {
		if t.expected[i].rows == 0 {
			t.expected[i] = rowsInMemory{m.Address(row, col), m.LD * m.DType.Size(), rows, cols * m.DType.Size()}
			return
		}
	}
}

// expectStore is expect for the elements that out will store.
func (t *tiles) expectStore(out *cast.Output, row, col, rows, cols int) {
	direct := out.Direct()
	for i := range direct {
		t.expect(&direct[i], row, col, rows, cols)
	}
}

// expectNothing clears the registered rows.
func (t *tiles) expectNothing() { t.expected, t.prefetched = [len(t.expected)]rowsInMemory{}, 0 }

// prefetchNext prefetches the next expected rows.
func (t *tiles) prefetchNext() {
	w := &t.expected[0]
	if w.rows == 0 {
		return
	}
	n := min(prefetchRows, w.rows-t.prefetched)
	simd.PrefetchRows(unsafe.Add(w.first, t.prefetched*w.step), w.step, n, w.bytes)
	if t.prefetched += n; t.prefetched == w.rows {
		copy(t.expected[:], t.expected[1:])
		t.expected[len(t.expected)-1], t.prefetched = rowsInMemory{}, 0
	}
}

func newTiles(kernel *gemm.Kernel, depth int, c *carver) tiles {
	t := tiles{Kernel: kernel, inPlace: inPlace(kernel)}
	if t.inPlace == nil {
		t.panel, t.corner = c.take(depth*kernel.NR), c.take(kernel.MR*kernel.NR)
	}
	return t
}

// matMul computes c = op(a)·b, or c += op(a)·b if add: each element is the chain
// c[i,j] = fma(a[i,l], b[l,j], c[i,j]), l ascending. c is rows×cols; op(a) is a or its
// transpose; rows, cols and k are at least 1.
func (t *tiles) matMul(c sheet, rows, cols, k int, a sheet, transA bool, b sheet, add bool) {
	t.prefetchNext()
	step, stepK := a.ld, 1
	if transA {
		step, stepK = 1, a.ld
	}
	if t.inPlace != nil {
		for i := 0; i < rows; i += t.MR {
			t.inPlace(k, min(t.MR, rows-i), cols, a.x[i*step:], step, stepK, b.x, b.ld, c.x[i*c.ld:], c.ld, add)
		}
		return
	}
	for j := 0; j < cols; j += t.NR {
		for l := range k {
			copy(t.panel[l*t.NR:][:t.NR], b.x[l*b.ld+j:])
		}
		for i := 0; i < rows; i += t.MR {
			height, to := min(t.MR, rows-i), c.at(i, j)
			if add {
				for r := range height {
					copy(t.corner[r*t.NR:], to.row(r, t.NR))
				}
			}
			t.Multiply(k, height, a.x[i*step:], step, stepK, t.panel, t.corner, add)
			for r := range height {
				copy(to.row(r, t.NR), t.corner[r*t.NR:])
			}
		}
	}
}

// decode writes rows×cols elements from (row, col) on as FP32 to dst, step
// elements from one row to the next.
func (t *tiles) decode(dst []float32, step int, src *memory.Matrix, row, col, rows, cols int) {
	t.Kernel.Decode(dst, step, t.NR, src.Sub(row, col), rows, cols)
	if src.Scale == nil {
		return
	}
	for i := range rows {
		simd.Scale(dst[i*step:][:cols], src.Scale[0])
	}
}

// transposed writes the transpose of the first rows rows of src, of length k.
func (t *tiles) transposed(dst, src sheet, rows, k int) {
	for r := 0; r < rows; r += t.TransposeRows {
		t.Transpose(dst.x[r:], dst.ld, src.x[r*src.ld:], src.ld, k)
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

// sheet takes a matrix of rows rows, with room for a tile after them.
func (c *carver) sheet(kernel *gemm.Kernel, rows, ld int) sheet {
	return sheet{c.take((rows + kernel.MR) * ld), ld}
}
