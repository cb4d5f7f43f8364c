package simd

// SumSquares returns Σ x², in float64 and 32 lanes.
func SumSquares(x []float32) float64 {
	var lanes [32]float64
	n := wholeVectors(len(x)) &^ 31
	if haveVectors && n > 0 {
		squareLanesVectors(&lanes, &x[0], n)
	}
	squareLanesGo(&lanes, x[n:])
	return fold(lanes[:])
}

//go:noescape
func squareLanesVectors(lanes *[32]float64, x *float32, n int)

// squareLanesGo is SumSquares without the sum of the lanes. The square of a float32 is
// exact in float64, so a fused multiply-add gives the same bits.
func squareLanesGo(lanes *[32]float64, x []float32) {
	for i, v := range x {
		lanes[i%len(lanes)] += float64(v) * float64(v)
	}
}
