package simd

import (
	"testing"
)

func TestElementwiseTwins(t *testing.T) {
	t.Run("add", func(t *testing.T) {
		sameKernels(t, 2,
			func(x [][]float32) float32 { Add(x[0], x[1]); return 0 },
			func(x [][]float32) float32 { addGo(x[0], x[1]); return 0 })
		sameKernels(t, 1,
			func(x [][]float32) float32 { Add(x[0], x[0]); return 0 },
			func(x [][]float32) float32 { addGo(x[0], x[0]); return 0 })
	})
	t.Run("butterfly", func(t *testing.T) {
		sameKernels(t, 2,
			func(x [][]float32) float32 { Butterfly(x[0], x[1]); return 0 },
			func(x [][]float32) float32 { butterflyGo(x[0], x[1]); return 0 })
	})
	for name, multiplyTo := range map[string]func(x [][]float32) []float32{
		"to dst":   func(x [][]float32) []float32 { return x[0] },
		"in place": func(x [][]float32) []float32 { return x[1] },
	} {
		t.Run("multiply "+name, func(t *testing.T) {
			sameKernels(t, 3,
				func(x [][]float32) float32 { Multiply(multiplyTo(x), x[1], x[2]); return 0 },
				func(x [][]float32) float32 { multiplyGo(multiplyTo(x), x[1], x[2]); return 0 })
		})
	}
	t.Run("scale", func(t *testing.T) {
		sameKernels(t, 1,
			func(x [][]float32) float32 { Scale(x[0], 0.3); return 0 },
			func(x [][]float32) float32 { scaleGo(x[0], 0.3); return 0 })
	})
	t.Run("scale rows", func(t *testing.T) {
		scales := []float32{0.3, -2}
		sameKernels(t, 1,
			func(x [][]float32) float32 { ScaleRows(x[0], len(x[0])/2, len(x[0])/2, scales); return 0 },
			func(x [][]float32) float32 {
				half := len(x[0]) / 2
				scaleGo(x[0][:half], scales[0])
				scaleGo(x[0][half:2*half], scales[1])
				return 0
			})
	})
	t.Run("maxMagnitudes", func(t *testing.T) {
		sameKernels(t, 2,
			func(x [][]float32) float32 { MaxMagnitudes(x[0], x[1]); return 0 },
			func(x [][]float32) float32 { maxMagnitudesGo(x[0], x[1]); return 0 })
	})
}
