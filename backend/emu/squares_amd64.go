//go:build !noasm

package emu

// squareVectors is squareLanes for as many of the first elements as fill the
// lanes, and says how many.
func squareVectors(lanes *[32]float64, x []float32) (n int) {
	n = len(x) &^ 31
	switch {
	case n == 0 || !haveAVX2:
		return 0
	case haveAVX512:
		squareLanesAVX512(lanes, &x[0], n)
	default:
		squareLanesAVX2(lanes, &x[0], n)
	}
	return n
}

// squareLanesAVX512 takes a multiple of 32 elements, above 0.
//
//go:noescape
func squareLanesAVX512(lanes *[32]float64, x *float32, n int)

//go:noescape
func squareLanesAVX2(lanes *[32]float64, x *float32, n int)
