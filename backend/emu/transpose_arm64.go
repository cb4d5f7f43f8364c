//go:build !noasm

package emu

// transposeBytes is transposeCodesGo.
func transposeBytes(dst []uint8, ld int, src []uint8, step, rows, cols int) {
	whole, done := rows&^15, cols&^15
	if whole > 0 && done > 0 {
		_, _ = dst[(done-1)*ld+whole-1], src[(whole-1)*step+done-1]
		transposeBytesNEON(&dst[0], ld, &src[0], step, whole, done)
	}
	transposeRest(dst, ld, src, step, rows, cols, whole, done)
}

// transposeWords is transposeCodesGo.
func transposeWords(dst []uint16, ld int, src []uint16, step, rows, cols int) {
	whole, done := rows&^7, cols&^7
	if whole > 0 && done > 0 {
		_, _ = dst[(done-1)*ld+whole-1], src[(whole-1)*step+done-1]
		transposeWordsNEON(&dst[0], ld, &src[0], step, whole, done)
	}
	transposeRest(dst, ld, src, step, rows, cols, whole, done)
}

// transposeRest is what vectors leave of a transpose: the rows from whole on,
// and of the rows before, the columns from done on.
func transposeRest[E uint16 | uint8](dst []E, ld int, src []E, step, rows, cols, whole, done int) {
	if whole < rows {
		transposeCodesGo(dst[whole:], ld, src[whole*step:], step, rows-whole, cols)
	}
	if done < cols {
		transposeCodesGo(dst[done*ld:], ld, src[done:], step, whole, cols-done)
	}
}

// The assembly takes multiples of sixteen rows and columns of bytes, and of
// eight of words; ld and step count elements.

//go:noescape
func transposeBytesNEON(dst *uint8, ld int, src *uint8, step, rows, cols int)

//go:noescape
func transposeWordsNEON(dst *uint16, ld int, src *uint16, step, rows, cols int)
