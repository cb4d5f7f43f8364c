//go:build (!amd64 && !arm64) || noasm

package fp8

type (
	vectorConstants struct{}
	decodeWords     struct{}
)

func newVectorConstants(*format) *vectorConstants { return nil }

func newDecodeWords(*format) *decodeWords { return nil }

func amaxVectors([]float32) (int, float32) { return 0, 0 }

func quantize8Vectors([]uint8, []float32, *format, float32, bool) (int, float32) { return 0, 0 }

func requantize8Vectors([]uint8, []uint16, DType, *format, float32, float32, bool) (int, float32) {
	return 0, 0
}

func requantize8StochasticVectors([]uint8, []uint16, DType, *format, float32, float32, uint64, uint64, bool) (int, float32) {
	return 0, 0
}

func quantize8StochasticVectors([]uint8, []float32, *format, float32, uint64, uint64, bool) (int, float32) {
	return 0, 0
}

func quantize16Vectors([]uint16, []float32, float32) (int, float32) { return 0, 0 }

func quantize16StochasticVectors([]uint16, []float32, float32, uint64, uint64) (int, float32) {
	return 0, 0
}

func encodeBF16Vectors([]uint16, int, []float32, int, int, int) int { return 0 }

func encodeBF16StochasticVectors([]uint16, []float32, uint64, uint64) int { return 0 }

func decodeBF16Vectors([]float32, []uint16) int { return 0 }

func dequantize8Vectors([]float32, []uint8, *format, float32) int { return 0 }

func dequantize16Vectors([]float32, []uint16, float32) int { return 0 }

func pack4Vectors([]uint8, []uint8) int { return 0 }

func unpack4Vectors([]uint8, []uint8) int { return 0 }
