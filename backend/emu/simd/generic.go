//go:build noasm || (!amd64 && !arm64)

package simd

// Without assembly the twins process all elements; no kernel is called.
const haveVectors = false

// Pause does nothing.
func Pause(int) {}

// The package does not compile without these functions, but nothing calls them.

func maxRowsVectors(top, scores []float32, ld int, visible []int) {}

func weighRowsVectors(scores []float32, ld, width int, visible []int, scale float32, largest, total []float32) {
}

func scoreGradientRowsVectors(p, ds []float32, ld, width int, visible []int, scale2, scale float32, lse2, delta []float32) {
}

func transpose8Vectors(dst *uint8, ld int, src *uint8, step, rows, cols int, stream bool) {}

func transpose16Vectors(dst *uint16, ld int, src *uint16, step, rows, cols int) {}
