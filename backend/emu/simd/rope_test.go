package simd

import "testing"

func TestRotateTwins(t *testing.T) {
	type rotate func(dst, x, cos, sin []float32, sign float32)
	for _, heads := range []int{1, 3} {
		for _, sign := range []float32{1, -1} {
			row := func(f rotate) func(x [][]float32) float32 {
				return func(x [][]float32) float32 {
					half := len(x[0]) / (2 * heads)
					n := 2 * heads * half
					if n > 0 {
						f(x[0][:n], x[1][:n], x[2][:half], x[3][:half], sign)
					}
					return 0
				}
			}
			sameKernels(t, 4, row(Rotate), row(rotateGo))
		}
	}
}
