package simd

import (
	"math"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
)

// ulps returns |got − want| in units in the last place of a float32 of want's magnitude.
func ulps(got float32, want float64) float64 {
	exponent := math.Ilogb(want)
	return math.Abs(float64(got)-want) / math.Ldexp(1, max(exponent, -126)-23)
}

func TestExp(t *testing.T) {
	step := uint32(4999)
	if os.Getenv("OCTET_LONG") != "" {
		step = 1
	}
	worst, previous := 0.0, float32(0)
	check := func(bits uint32) {
		x := math.Float32frombits(bits)
		want := math.Exp(float64(x))
		got := exp(x)
		var fine bool
		switch {
		case want > math.MaxFloat32: // rounding may still give the largest finite value
			fine = got > math.MaxFloat32*0.999999
		case want < 0x1p-150:
			fine = got == 0
		default:
			worst = max(worst, ulps(got, want))
			fine = ulps(got, want) <= 1.5
		}
		if !fine {
			t.Fatalf("exp(%v) is %v, got %v", x, want, got)
		}
		// Rounding may make exp decrease, but by no more than 2^-22 of its value.
		if float64(got) < float64(previous)*(1-0x1p-22) {
			t.Fatalf("exp decreases at %v", x)
		}
		previous = got
	}
	const one = 1 << 31
	for bits := int64(math.Float32bits(120)); bits >= 0; bits -= int64(step) {
		check(uint32(bits) | one) // negative arguments ascend towards 0
	}
	for bits := int64(0); bits <= int64(math.Float32bits(120)); bits += int64(step) {
		check(uint32(bits))
	}
	t.Logf("largest error %.3f ulp", worst)
}

func TestExpSpecial(t *testing.T) {
	inf := float32(math.Inf(1))
	require.Equal(t, float32(1), exp(0))
	require.Equal(t, inf, exp(inf))
	require.Equal(t, inf, exp(89))
	require.Equal(t, inf, exp(math.MaxFloat32))
	require.Zero(t, exp(-inf))
	require.Zero(t, exp(-math.MaxFloat32))
	require.True(t, math.IsNaN(float64(exp(float32(math.NaN())))))
	require.Equal(t, math.Float32frombits(1), exp(-103.2), "a subnormal result")
}

func TestExpSum(t *testing.T) {
	inf := float32(math.Inf(1))
	x := []float32{1, 2, 3, -inf}
	sum := ExpSum(x, x, 2, 6)
	require.Equal(t, []float32{exp(-4), exp(-2), 1, 0}, x)
	require.Equal(t, 1+exp(-4)+exp(-2), sum)
}

// expSumGo is the twin of ExpSum.
func expSumGo(dst, x []float32, scale, shift float32) float32 {
	var lanes [16]float32
	expLanesGo(&lanes, dst, x, scale, shift)
	return fold(lanes[:])
}

// ExpSum gives the bits of its twin for every length, at the edges of the range and in
// place.
func TestExpSumTwins(t *testing.T) {
	for _, c := range [][2]float32{{1, 0}, {-1, 0}, {0.3, 2}, {1.7, -0.6}} {
		scale, shift := c[0], c[1]
		sameKernels(t, 2,
			func(x [][]float32) float32 { return ExpSum(x[0], x[1], scale, shift) },
			func(x [][]float32) float32 { return expSumGo(x[0], x[1], scale, shift) })
		sameKernels(t, 1,
			func(x [][]float32) float32 { return ExpSum(x[0], x[0], scale, shift) },
			func(x [][]float32) float32 { return expSumGo(x[0], x[0], scale, shift) })
	}
}

func TestMax(t *testing.T) {
	eachInstructionSet(t, testMax)
}

func testMax(t *testing.T) {
	nan := float32(math.NaN())
	for n := 1; n < 100; n += n/20 + 1 {
		x := make([]float32, n)
		for i := range x {
			x[i] = -9
		}
		for i := range x {
			for j := range x {
				x[j], x[i] = nan, -2
				if got := Max(x); got != -2 {
					t.Fatalf("largest of %v: got %v", x, got)
				}
				x[j], x[i] = -9, -9
			}
		}
	}
	require.Equal(t, float32(math.Inf(-1)), Max([]float32{nan, nan}))
	require.Equal(t, float32(math.Inf(-1)), Max(nil))
}

func TestSigmoid(t *testing.T) {
	for x := float32(-80); x <= 80; x += 0.37 {
		require.InEpsilon(t, 1/(1+math.Exp(-float64(x))), sigmoid(x), 4e-7, "sigmoid of %v", x)
	}
	require.Zero(t, sigmoid(float32(math.Inf(-1))))
	require.EqualValues(t, 1, sigmoid(float32(math.Inf(1))))
	require.EqualValues(t, 0.5, sigmoid(0))
}

func BenchmarkExpSum(b *testing.B) {
	x, y := make([]float32, 4096), make([]float32, 4096)
	for i := range x {
		x[i] = -float32(i) / 100
	}
	b.SetBytes(int64(len(x)) * 4)
	for b.Loop() {
		ExpSum(y, x, 1, 1)
	}
}
