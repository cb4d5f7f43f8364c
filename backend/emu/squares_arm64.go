//go:build !noasm

package emu

// squareVectors is squareLanes for as many of the first elements as fill the
// lanes, and says how many.
func squareVectors(lanes *[32]float64, x []float32) (n int) {
	n = len(x) &^ 31
	if n > 0 {
		squareLanesNEON(lanes, &x[0], n)
	}
	return n
}

// squareLanesNEON takes a multiple of 32 elements, above 0.
//
//go:noescape
func squareLanesNEON(lanes *[32]float64, x *float32, n int)
