package fp8

import (
	"math"
	"testing"
)

const benchLen = 1 << 16

// benchInput has the spread of a gradient: eight binades below its largest
// element and a tail below that, both signs.
func benchInput() []float32 {
	x := make([]float32, benchLen)
	for i := range x {
		r := Random(7, uint64(i))
		x[i] = float32(int32(r)) * float32(math.Exp2(-float64(Random(8, uint64(i))%20))) * 0x1p-23
	}
	return x
}

func BenchmarkQuantize8(b *testing.B) {
	src, dst := benchInput(), make([]uint8, benchLen)
	for _, d := range fp8Formats {
		b.Run(d.String(), func(b *testing.B) {
			b.SetBytes(4 * benchLen)
			for b.Loop() {
				Quantize8(dst, src, d, 1)
			}
		})
	}
}

func BenchmarkQuantize8Stochastic(b *testing.B) {
	src, dst := benchInput(), make([]uint8, benchLen)
	for _, d := range fp8Formats {
		b.Run(d.String(), func(b *testing.B) {
			b.SetBytes(4 * benchLen)
			for b.Loop() {
				Quantize8Stochastic(dst, src, d, 1, 1, 2)
			}
		})
	}
}

func BenchmarkDequantize8(b *testing.B) {
	dst, src := make([]float32, benchLen), make([]uint8, benchLen)
	Quantize8(src, benchInput(), E4M3, 1)
	b.SetBytes(4 * benchLen)
	for b.Loop() {
		Dequantize8(dst, src, E4M3, 2)
	}
}

func BenchmarkEncodeBF16(b *testing.B) {
	src, dst := benchInput(), make([]uint16, benchLen)
	b.SetBytes(4 * benchLen)
	for b.Loop() {
		EncodeBF16(dst, src)
	}
}

func BenchmarkEncodeBF16Stochastic(b *testing.B) {
	src, dst := benchInput(), make([]uint16, benchLen)
	b.SetBytes(4 * benchLen)
	for b.Loop() {
		EncodeBF16Stochastic(dst, src, 1, 2)
	}
}

func BenchmarkDecodeBF16(b *testing.B) {
	dst, src := make([]float32, benchLen), make([]uint16, benchLen)
	EncodeBF16(src, benchInput())
	b.SetBytes(4 * benchLen)
	for b.Loop() {
		DecodeBF16(dst, src)
	}
}

func BenchmarkQuantize16(b *testing.B) {
	src, dst := benchInput(), make([]uint16, benchLen)
	b.SetBytes(4 * benchLen)
	for b.Loop() {
		Quantize16(dst, src, 1)
	}
}

func BenchmarkQuantize16Stochastic(b *testing.B) {
	src, dst := benchInput(), make([]uint16, benchLen)
	b.SetBytes(4 * benchLen)
	for b.Loop() {
		Quantize16Stochastic(dst, src, 1, 1, 2)
	}
}

func BenchmarkDequantize16(b *testing.B) {
	dst, src := make([]float32, benchLen), make([]uint16, benchLen)
	Quantize16(src, benchInput(), 1)
	b.SetBytes(4 * benchLen)
	for b.Loop() {
		Dequantize16(dst, src, 2)
	}
}

func BenchmarkAmax(b *testing.B) {
	src := benchInput()
	b.SetBytes(4 * benchLen)
	for b.Loop() {
		Amax(src)
	}
}

func BenchmarkNearest(b *testing.B) {
	src := benchInput()
	b.SetBytes(4 * benchLen)
	for b.Loop() {
		for _, x := range src {
			E4M3.Nearest(x, Saturate)
		}
	}
}

func BenchmarkStochastic(b *testing.B) {
	src := benchInput()
	b.SetBytes(4 * benchLen)
	for b.Loop() {
		for _, x := range src {
			E4M3.Stochastic(x, 1<<30, Saturate)
		}
	}
}
