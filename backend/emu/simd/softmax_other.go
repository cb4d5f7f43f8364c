//go:build !amd64 || noasm

package simd

// Only AVX-512 has kernels for rows of BF16: AMX, which multiplies them, implies it.

func weighRowsBF16Vectors(scores []float32, ld, width int, visible []int, scale float32, largest, total []float32) bool {
	return false
}

func scoreGradientRowsBF16Vectors(p, ds []float32, ld, width int, visible []int, scale2, scale float32, lse2, delta []float32) bool {
	return false
}
