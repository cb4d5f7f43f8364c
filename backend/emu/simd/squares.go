package simd

// SumSquares is Σ x², in float64 and 32 lanes.
func SumSquares(x []float32) float64 {
	var lanes [32]float64
	n := wholeVectors(len(x)) &^ 31
	if n > 0 {
		squareLanesVectors(&lanes, &x[0], n)
	}
	squareLanesGo(&lanes, x[n:])
	return fold(lanes[:])
}

// squareLanesGo is SumSquares but for adding up the lanes. A square of a float32
// is exact in float64, so that it does not matter whether it is fused.
func squareLanesGo(lanes *[32]float64, x []float32) {
	for i, v := range x {
		lanes[i%len(lanes)] += float64(v) * float64(v)
	}
}
