//go:build !noasm

package fp8

import (
	"math"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
)

// forEachInstructionSet runs f with each kind of kernel that the processor
// supports: AVX-512, AVX2, plain Go.
func forEachInstructionSet(t *testing.T, f func(t *testing.T)) {
	wide, narrow := haveAVX512, haveAVX2
	defer func() { haveAVX512, haveAVX2 = wide, narrow }()
	if wide {
		t.Run("avx512", f)
	}
	haveAVX512 = false
	if narrow {
		t.Run("avx2", f)
	}
	haveAVX2 = false
	t.Run("go", f)
}

func TestEachInstructionSet(t *testing.T) {
	forEachInstructionSet(t, func(t *testing.T) {
		TestSlicesMatchScalars(t)
		TestSlicesMatchScalarsAtBoundaries(t)
		TestStochasticIndependentOfSplit(t)
		TestRequantize(t)
		TestQuantizeNonTemporal(t)
		TestDequantize(t)
		TestDequantizeStaysInBounds(t)
		TestAmax(t)
		TestAmaxAtEveryIndex(t)
	})
}

// TestVectorKernelsMatchGo compares the vector kernels with plain Go on float32
// values of all exponents, and with OCTET_LONG on every float32.
func TestVectorKernelsMatchGo(t *testing.T) {
	stride := uint64(1<<14 + 1)
	if os.Getenv("OCTET_LONG") != "" {
		stride = 1
	}
	const n = 4096
	src := make([]float32, n)
	got8, want8, got16, want16 := make([]uint8, n), make([]uint8, n), make([]uint16, n), make([]uint16, n)
	for first := uint64(0); first < 1<<32; first += n * stride {
		for i := range src {
			src[i] = math.Float32frombits(uint32(first + uint64(i)*stride))
		}
		key, index := mix64(first), first*3
		same := func(d DType, what string) {
			for i := range n {
				if got8[i] != want8[i] || got16[i] != want16[i] {
					t.Fatalf("%s, %s: %v (%#08x), random %#08x", d, what, src[i], math.Float32bits(src[i]), Random(key, index+uint64(i)))
				}
			}
		}
		for _, d := range kinds {
			f := rows[d]
			require.Equal(t, math.Float32bits(quantizeGo(want8, src, f, 1)), math.Float32bits(Quantize8(got8, src, d, 1, false)))
			same(d, "nearest")
			quantizeStochasticGo(want8, src, f, 1, key, index)
			Quantize8Stochastic(got8, src, d, 1, key, index, false)
			same(d, "stochastic")
		}
		quantizeGo(want16, src, rows[F16], 1)
		Quantize16(got16, src, 1)
		same(F16, "nearest")
		quantizeStochasticGo(want16, src, rows[F16], 1, key, index)
		Quantize16Stochastic(got16, src, 1, key, index)
		same(F16, "stochastic")
		encodeBF16Go(want16, src)
		EncodeBF16(got16, src)
		same(BF16, "nearest")
		encodeBF16StochasticGo(want16, src, key, index)
		EncodeBF16Stochastic(got16, src, key, index)
		same(BF16, "stochastic")
	}
}

func TestAVX2KernelsMatchGo(t *testing.T) {
	defer func(wide bool) { haveAVX512 = wide }(haveAVX512)
	haveAVX512 = false
	TestVectorKernelsMatchGo(t)
}
