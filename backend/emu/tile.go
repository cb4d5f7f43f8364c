package emu

import (
	"unsafe"

	"octet/backend"
	"octet/backend/emu/simd"
)

// Attention multiplies small FP32 matrices that live in a worker's scratch,
// with the kernels of the matrix product. There they are row-major and stay
// where they are: no panels are packed and no tile is copied where a kernel
// has a multiply in place.

// sheet is a row-major matrix in scratch, ld elements from row to row. Kernels
// read, and write, its columns up to a multiple of nr, and read mr rows from
// any row on: there is room for that.
type sheet struct {
	x  []float32
	ld int
}

// at is s without the rows above i and the columns left of j.
func (s sheet) at(i, j int) sheet { return sheet{s.x[i*s.ld+j:], s.ld} }

// row is the first n elements of row i.
func (s sheet) row(i, n int) []float32 { return s.x[i*s.ld:][:n] }

// maxTileRows is as large as the mr of any kernel.
const maxTileRows = 16

// multiplyInto is gemmKernel.multiply with b[l,j] at l·ldb + j and c[i,j] at
// i·ldc + j, of which it stores rows rows, at most mr, and cols columns, rounded
// up to a multiple of nr.
type multiplyInto func(k, rows, cols int, a []float32, step, stepK int, b []float32, ldb int, c []float32, ldc int, load bool)

// tiles multiplies with one kernel, in one worker's scratch.
type tiles struct {
	*gemmKernel
	inPlace       multiplyInto
	panel, corner []float32 // [depth, nr] and [mr, nr], if inPlace is nil

	wanted [8]rowsInMemory
	asked  int // rows of wanted[0] that have been asked for
}

// rowsInMemory are rows of a matrix.
type rowsInMemory struct {
	first             unsafe.Pointer
	step, rows, bytes int
}

// askRows is how many rows a product asks for: their way from memory is shorter
// than a product of mr rows takes.
const askRows = 16

// expect says which rows×cols elements of m, from (row, col) on, will be read or
// written soon. Rows of one head are short, and a processor notices too late that
// somebody goes through them: products ask for them, some at a time. What has no
// room is not asked for.
func (t *tiles) expect(m *matrix, row, col, rows, cols int) {
	for i := range t.wanted {
		if t.wanted[i].rows == 0 {
			t.wanted[i] = rowsInMemory{m.address(row, col), m.ld * m.dtype.Size(), rows, cols * m.dtype.Size()}
			return
		}
	}
}

// expectStore is expect for what e will store.
func (t *tiles) expectStore(e *emitter, row, col, rows, cols int) {
	for i := range e.casts {
		if c := &e.casts[i]; c.strips == nil {
			t.expect(&matrix{dtype: c.dtype, ld: c.ld, f32: c.f32, u16: c.u16, u8: c.u8}, row, col, rows, cols)
		}
	}
}

// expectNothing forgets what was expected.
func (t *tiles) expectNothing() { t.wanted, t.asked = [len(t.wanted)]rowsInMemory{}, 0 }

// ask asks for the next rows that are expected.
func (t *tiles) ask() {
	w := &t.wanted[0]
	if w.rows == 0 {
		return
	}
	n := min(askRows, w.rows-t.asked)
	simd.PrefetchRows(unsafe.Add(w.first, t.asked*w.step), w.step, n, w.bytes)
	if t.asked += n; t.asked == w.rows {
		copy(t.wanted[:], t.wanted[1:])
		t.wanted[len(t.wanted)-1], t.asked = rowsInMemory{}, 0
	}
}

func newTiles(kernel *gemmKernel, depth int, c *carver) tiles {
	t := tiles{gemmKernel: kernel, inPlace: inPlace(kernel)}
	if t.inPlace == nil {
		t.panel, t.corner = c.take(depth*kernel.nr), c.take(kernel.mr*kernel.nr)
	}
	return t
}

// product is c = op(a)·b, or c += op(a)·b if add: each element continues as
// the chain fma(a[i,l], b[l,j], c[i,j]), l ascending. c is rows×cols, op(a) is
// a or its transpose; rows, cols and k are at least 1.
func (t *tiles) product(c sheet, rows, cols, k int, a sheet, transA bool, b sheet, add bool) {
	t.ask()
	step, stepK := a.ld, 1
	if transA {
		step, stepK = 1, a.ld
	}
	if t.inPlace != nil {
		for i := 0; i < rows; i += t.mr {
			t.inPlace(k, min(t.mr, rows-i), cols, a.x[i*step:], step, stepK, b.x, b.ld, c.x[i*c.ld:], c.ld, add)
		}
		return
	}
	for j := 0; j < cols; j += t.nr {
		for l := range k {
			copy(t.panel[l*t.nr:][:t.nr], b.x[l*b.ld+j:])
		}
		for i := 0; i < rows; i += t.mr {
			height, to := min(t.mr, rows-i), c.at(i, j)
			if add {
				for r := range height {
					copy(t.corner[r*t.nr:], to.row(r, t.nr))
				}
			}
			t.multiply(k, height, a.x[i*step:], step, stepK, t.panel, t.corner, add)
			for r := range height {
				copy(to.row(r, t.nr), t.corner[r*t.nr:])
			}
		}
	}
}

// operand is a matrix that tiles are decoded from.
type operand struct {
	matrix
	scale []float32
}

func (b *binder) operand(t *backend.Tensor) operand {
	return operand{b.matrixOf(t), b.f32(t.Scale)}
}

// decode writes rows×cols elements from (row, col) on as FP32 to dst, step
// elements from one row to the next.
func (t *tiles) decode(dst []float32, step int, src *operand, row, col, rows, cols int) {
	t.gemmKernel.decode(dst, step, t.nr, src.at(row, col), rows, cols)
	if src.scale == nil {
		return
	}
	for i := range rows {
		simd.Scale(dst[i*step:][:cols], src.scale[0])
	}
}

// transposed writes the transpose of the first rows rows of src, of length k.
func (t *tiles) transposed(dst, src sheet, rows, k int) {
	for r := 0; r < rows; r += t.group {
		t.transpose(dst.x[r:], dst.ld, src.x[r*src.ld:], src.ld, k)
	}
}

// carver cuts a worker's scratch into pieces on cache lines. Without scratch
// it only counts, so that the code which cuts also says how much it needs.
type carver struct {
	scratch []float32
	used    int
}

func (c *carver) take(n int) []float32 {
	from := c.used
	c.used += roundUp(n, arenaAlign/4)
	if c.scratch == nil {
		return nil
	}
	return c.scratch[from : from+n]
}

// sheet takes a matrix with a tile of room behind its rows and columns.
func (c *carver) sheet(kernel *gemmKernel, rows, ld int) sheet {
	return sheet{c.take((rows + kernel.mr) * ld), ld}
}
