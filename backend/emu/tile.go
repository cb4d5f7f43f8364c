package emu

import "octet/backend"

// Attention multiplies small FP32 matrices that live in a worker's scratch,
// with the kernels of the matrix product. The left factor and the result are
// row-major; the right factor is in panels of nr columns, as kernels want it.

// tiles multiplies with one kernel, in one worker's scratch.
type tiles struct {
	*gemmKernel
	corner []float32 // mr×nr, on its way to the result
}

// product is c = a·b, or c += a·b if add, with c rows×cols, rows ldc apart.
// a[i,l] is at i·step + l·stepK and must be readable up to a multiple of mr
// rows; b has k rows, its panels are panel apart.
func (t *tiles) product(c []float32, ldc, rows, cols, k int, a []float32, step, stepK int, b []float32, panel int, add bool) {
	for j := 0; j < cols; j += t.nr {
		width := min(t.nr, cols-j)
		for i := 0; i < rows; i += t.mr {
			height := min(t.mr, rows-i)
			t.multiply(k, height, a[i*step:], step, stepK, b, t.corner, false)
			for r := range height {
				dst, src := c[(i+r)*ldc+j:][:width], t.corner[r*t.nr:][:width]
				if add {
					addInto(dst, src)
				} else {
					copy(dst, src)
				}
			}
		}
		b = b[min(panel, len(b)):]
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

// decode writes rows×cols elements from (row, col) on as FP32: row i starts at
// i·step, each run of nr columns at chunk after the run before it.
func (t *tiles) decode(dst []float32, step, chunk int, src *operand, row, col, rows, cols int) {
	t.gemmKernel.decode(dst, step, chunk, src.at(row, col), rows, cols)
	if src.scale == nil {
		return
	}
	for i := range rows {
		for j := 0; j < cols; j += t.nr {
			run := dst[i*step+j/t.nr*chunk:][:min(t.nr, cols-j)]
			for l := range run {
				run[l] *= src.scale[0]
			}
		}
	}
}

// transposed turns rows of length k, ld apart, into the panels of their
// transpose, panel apart.
func (t *tiles) transposed(dst []float32, panel int, src []float32, ld, rows, k int) {
	for r := 0; r < rows; r += t.group {
		t.transpose(dst[r/t.nr*panel+r%t.nr:], t.nr, src[r*ld:], ld, k)
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
