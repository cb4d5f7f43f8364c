//go:build noasm || (!amd64 && !arm64)

package simd

import "unsafe"

// Without assembly the twins process all elements; no kernel is called.
const haveVectors = false

// Pause does nothing.
func Pause(int) {}

// The package does not compile without these functions, but nothing calls them.

func prefetchRows(p unsafe.Pointer, step, rows, bytes int) {}

func addVectors(dst, x *float32, n int) {}

func multiplyVectors(dst, x, y *float32, n int) {}

func scaleVectors(x *float32, n int, scale float32) {}

func maxMagnitudesVectors(dst, x *float32, n int) {}

func expLanesVectors(lanes *[16]float32, dst, x *float32, n int, scale, shift float32) float32 {
	return 0
}

func maxVectors(x *float32, n int) float32 { return 0 }

func dotLanesVectors(lanes *[32]float32, x, y *float32, n int) float32 { return 0 }

func gainLanesVectors(lanes *[32]float32, dgain, x, dy, gain *float32, inv float32, n int) float32 {
	return 0
}

func scaleByGainVectors(dst, x, gain *float32, inv float32, n int) {}

func normGradientVectors(dx, x, dy, gain *float32, inv, mean float32, n int) {}

func squareLanesVectors(lanes *[32]float64, x *float32, n int) {}

func rotateVectors(dst, x, cos, sin *float32, heads, half int, sign float32) {}

func mulSiLUVectors(dst, up, gate *float32, n int) {}

func mulSiLUGradientVectors(du, dg, da, up, gate *float32, n int) {}

func reluVectors(dst, x *float32, n int) {}

func reluGradientVectors(dx, x, dy *float32, n int) {}

func geluVectors(dst, x *float32, n int) {}

func geluGradientVectors(dx, x, dy *float32, n int) {}

func adamWVectors(rule *AdamW, p, m, v, grad *float32, n int, lanes *[3][16]uint32) {}

func maxRowsVectors(top, scores []float32, ld int, visible []int) {}

func weighRowsVectors(scores []float32, ld, width int, visible []int, scale float32, largest, total []float32) {
}

func scoreGradientRowsVectors(p, ds []float32, ld, width int, visible []int, scale2, scale float32, lse2, delta []float32) {
}

func transpose8Vectors(dst *uint8, ld int, src *uint8, step, rows, cols int, stream bool) {}

func transpose16Vectors(dst *uint16, ld int, src *uint16, step, rows, cols int) {}
