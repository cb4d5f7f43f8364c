package emu

// squares is Σ x²: the square of element i is added to lane i mod 32, and then
// the upper half of the lanes to the lower until one is left.
func squares(x []float32) float64 {
	var lanes [32]float64
	n := squareVectors(&lanes, x)
	squareLanes(&lanes, x[n:])
	return foldSquares(&lanes)
}

func foldSquares(lanes *[32]float64) float64 {
	for half := len(lanes) / 2; half > 0; half /= 2 {
		for i, s := range lanes[half : 2*half] {
			lanes[i] += s
		}
	}
	return lanes[0]
}

// squareLanes adds to the lanes. A square of a float32 is exact in float64, so
// that it does not matter whether it is fused.
func squareLanes(lanes *[32]float64, x []float32) {
	for i, v := range x {
		lanes[i%len(lanes)] += float64(v) * float64(v)
	}
}
