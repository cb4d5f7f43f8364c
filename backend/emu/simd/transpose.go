package simd

// lineBytes is a cache line.
const lineBytes = 64

// TransposeRows is how many rows of bytes fill a cache line of a transpose's result.
// Transpose16 and Transpose32 take no more rows.
const TransposeRows = lineBytes

// Transpose8 stores the transpose of src, rows × cols with rows step elements apart, to
// dst, cols × rows with rows ld apart. The two must not overlap. With stream, for a
// result that is not read soon, it may store whole cache lines past the caches, which
// are then not read before they are overwritten.
func Transpose8(dst []uint8, ld int, src []uint8, step, rows, cols int, stream bool) {
	whole, done := wholeVectors(rows), wholeVectors(cols)
	if whole > 0 && done > 0 {
		_, _ = dst[(done-1)*ld+whole-1], src[(whole-1)*step+done-1]
		transpose8Vectors(&dst[0], ld, &src[0], step, whole, done, stream)
	}
	transposeRest(dst, ld, src, step, rows, cols, whole, done)
}

// Transpose16 is Transpose8 for elements of two bytes.
func Transpose16(dst []uint16, ld int, src []uint16, step, rows, cols int) {
	whole, done := wholeVectors(rows), wholeVectors(cols)
	if whole > 0 && done > 0 {
		_, _ = dst[(done-1)*ld+whole-1], src[(whole-1)*step+done-1]
		transpose16Vectors(&dst[0], ld, &src[0], step, whole, done)
	}
	transposeRest(dst, ld, src, step, rows, cols, whole, done)
}

// Transpose32 is Transpose8 for float32.
func Transpose32(dst []float32, ld int, src []float32, step, rows, cols int) {
	transposeGo(dst, ld, src, step, rows, cols)
}

// transposeRest transposes what the vector kernels leave: the rows from whole on of the
// columns before done, and the columns from done on.
func transposeRest[E uint16 | uint8](dst []E, ld int, src []E, step, rows, cols, whole, done int) {
	if whole < rows {
		transposeGo(dst[whole:], ld, src[whole*step:], step, rows-whole, done)
	}
	if done < cols {
		transposeGo(dst[done*ld:], ld, src[done:], step, rows, cols-done)
	}
}

func transposeGo[E float32 | uint16 | uint8](dst []E, ld int, src []E, step, rows, cols int) {
	for j := range cols {
		to := dst[j*ld:][:rows]
		for i := range to {
			to[i] = src[i*step+j]
		}
	}
}
