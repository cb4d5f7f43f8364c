//go:build !noasm

package emu

// transposeBytes is transposeCodesGo, for stripRows at most.
func transposeBytes(dst []uint8, ld int, src []uint8, step, rows, cols int) {
	whole := rows &^ 15
	done := cols &^ 15
	if !haveAVX2 || whole == 0 || done == 0 {
		transposeCodesGo(dst, ld, src, step, rows, cols)
		return
	}
	_, _ = dst[(done-1)*ld+whole-1], src[(whole-1)*step+done-1]
	var stage [stripRows * 16]uint8
	transposeBytesAVX2(&dst[0], ld, &src[0], step, whole, done, &stage)
	transposeRest(dst, ld, src, step, rows, cols, whole, done)
}

// transposeWords is transposeCodesGo, for stripRows at most.
func transposeWords(dst []uint16, ld int, src []uint16, step, rows, cols int) {
	whole := rows &^ 15
	done := cols &^ 7
	if !haveAVX2 || whole == 0 || done == 0 {
		transposeCodesGo(dst, ld, src, step, rows, cols)
		return
	}
	_, _ = dst[(done-1)*ld+whole-1], src[(whole-1)*step+done-1]
	var stage [stripRows * 16]uint8
	transposeWordsAVX2(&dst[0], ld, &src[0], step, whole, done, &stage)
	transposeRest(dst, ld, src, step, rows, cols, whole, done)
}

// transposeRest is what vectors leave of a transpose: the rows from whole on,
// and of the rows before, the columns from done on.
func transposeRest[E uint16 | uint8](dst []E, ld int, src []E, step, rows, cols, whole, done int) {
	if whole < rows {
		transposeCodesGo(dst[whole:], ld, src[whole*step:], step, rows-whole, done)
	}
	if done < cols {
		transposeCodesGo(dst[done*ld:], ld, src[done:], step, rows, cols-done)
	}
}

// The assembly takes sixteen rows or a multiple, stripRows at most, and
// multiples of sixteen columns of bytes or of eight of words; ld and step count elements.

//go:noescape
func transposeBytesAVX2(dst *uint8, ld int, src *uint8, step, rows, cols int, stage *[1024]uint8)

//go:noescape
func transposeWordsAVX2(dst *uint16, ld int, src *uint16, step, rows, cols int, stage *[1024]uint8)
