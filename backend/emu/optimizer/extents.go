package optimizer

import "octet/fp8"

// Extents are the largest and smallest magnitudes of a tensor, block by block.
// SumSquares and AdamW record them for the next AdamW, which then need not read the whole
// tensor. Call Forget before any other write to the tensor.
type Extents struct {
	known bool
	max   []float32 // the largest magnitude of each whole block, unscaled; nil if unused
	min   []float32 // the smallest, only of second moments
}

// extentBlock is the elements of a block. While a model trains, 1 to 10 % of blocks of
// 256 may hold a new maximum; of blocks of 1,024, 6 to 40 %.
const extentBlock = 256

// Forget marks e, which may be nil, unknown.
func (e *Extents) Forget() {
	if e != nil {
		e.known = false
	}
}

func (e *Extents) wanted() bool { return e != nil && e.max != nil }

// note records the largest magnitudes of x, which begins at element at.
func (e *Extents) note(at int, x []float32) {
	for i := 0; i+extentBlock <= len(x); i += extentBlock {
		e.max[(at+i)/extentBlock] = fp8.Amax(x[i : i+extentBlock])
	}
}
