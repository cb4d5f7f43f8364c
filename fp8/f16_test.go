package fp8

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"
)

// halfOf is the definition of a cast to F16 without saturation, in float64: the nearest
// multiple of the unit of x's binade, ties to even, and infinity from 65536 on.
func halfOf(x float64) float64 {
	if x == 0 || math.IsNaN(x) || math.IsInf(x, 0) {
		return x
	}
	_, exponent := math.Frexp(x) // |x| is in [2^(exponent-1), 2^exponent)
	unit := math.Ldexp(1, max(exponent-11, -24))
	if x = math.RoundToEven(x/unit) * unit; math.Abs(x) >= 0x1p16 {
		return math.Copysign(math.Inf(1), x)
	}
	return x
}

// Casts of unscaled F16 overflow to infinity, whatever else is in the slice.
func TestEncodeF16(t *testing.T) {
	edges := []float32{
		0, float32(math.Copysign(0, -1)), 1, -1.0009765625, 65504, -65504, 65519.996, 65520, -65520, 65536, 1e30, -1e30,
		math.MaxFloat32, float32(math.Inf(1)), float32(math.Inf(-1)), 0x1p-24, 0x1p-25, 0x1.8p-25, -0x1.004p-14, 0x1p-149,
	}
	for range 40 {
		edges = append(edges, edges[len(edges)-20]*1.0004883)
	}
	for from := range edges {
		src := edges[from:]
		dst := make([]uint16, len(src))
		EncodeF16(dst, src)
		for i, x := range src {
			require.Equal(t, halfOf(float64(x)), float64(F16.Float32(uint32(dst[i]))), "of %v", x)
			require.Equal(t, F16.Nearest(x, NonSaturating), uint32(dst[i]), "of %v", x)
		}
	}
	codes := make([]uint16, 3)
	EncodeF16(codes, []float32{1, float32(math.NaN()), -70000})
	require.Equal(t, []uint16{0x3c00, 0x7fff, 0xfc00}, codes)
}

// Above the largest value, stochastic rounding overflows in proportion to the excess.
func TestEncodeF16Stochastic(t *testing.T) {
	const n = 1 << 14
	src, dst := make([]float32, n), make([]uint16, n)
	for i := range src {
		src[i] = 65504 + 8 // a quarter of the unit
	}
	src[5], src[6], src[7] = float32(math.NaN()), 1e9, -1e9
	EncodeF16Stochastic(dst, src, 77, 3)
	infinite := 0
	for i, x := range src {
		require.Equal(t, F16.Stochastic(x, Random(77, 3+uint64(i)), NonSaturating), uint32(dst[i]), "element %d", i)
		if dst[i] == 0x7c00 {
			infinite++
		}
	}
	require.Equal(t, []uint16{0x7fff, 0x7c00, 0xfc00}, dst[5:8])
	require.InDelta(t, n/4, infinite, 4*math.Sqrt(n*3.0/16))
}
