package emu

import (
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// ulps is the distance from the float64 value in units of the last place that
// a float32 of its size has.
func ulps(got float32, want float64) float64 {
	exponent := math.Ilogb(want)
	return math.Abs(float64(got)-want) / math.Ldexp(1, max(exponent, -126)-23)
}

func TestExpf(t *testing.T) {
	step := uint32(4999)
	if os.Getenv("OCTET_LONG") != "" {
		step = 1
	}
	worst, previous := 0.0, float32(0)
	check := func(bits uint32) {
		x := math.Float32frombits(bits)
		want := math.Exp(float64(x))
		got := expf(x)
		fine := true
		switch {
		case want > math.MaxFloat32: // rounding may still reach the largest finite number
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
		// Neighbours may be out of order by a rounding, never by more.
		if float64(got) < float64(previous)*(1-0x1p-22) {
			t.Fatalf("exp falls at %v", x)
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

func TestExpfSpecial(t *testing.T) {
	inf := float32(math.Inf(1))
	require.Equal(t, float32(1), expf(0))
	require.Equal(t, inf, expf(inf))
	require.Equal(t, inf, expf(89))
	require.Equal(t, inf, expf(math.MaxFloat32))
	require.Zero(t, expf(-inf))
	require.Zero(t, expf(-math.MaxFloat32))
	require.True(t, math.IsNaN(float64(expf(float32(math.NaN())))))
	require.Equal(t, math.Float32frombits(1), expf(-103.2), "a subnormal result")
}

func TestExpSum(t *testing.T) {
	inf := float32(math.Inf(1))
	x := []float32{1, 2, 3, -inf}
	sum := expSum(x, x, 2, 6)
	require.Equal(t, []float32{expf(-4), expf(-2), 1, 0}, x)
	require.Equal(t, 1+expf(-4)+expf(-2), sum)
}

// The kernels for slices give the bits of their Go twins, for every length, at
// the edges of the range and in place.
func TestExpSumTwins(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 4))
	special := []float32{
		0, float32(math.Copysign(0, -1)), 88.7, 88.8, -87.3, -87.4, -103.9, -104, -200, 1e30, -1e30,
		float32(math.Inf(1)), float32(math.Inf(-1)), float32(math.NaN()), 1e-45, -1e-30,
	}
	for n := range 100 {
		x := make([]float32, n)
		for i := range x {
			x[i] = float32(random.NormFloat64() * 40)
			if n%3 == 0 && random.IntN(4) == 0 {
				x[i] = special[random.IntN(len(special))]
			}
		}
		scale, shift := float32(random.Float64()), float32(random.NormFloat64())
		if n%3 == 0 {
			scale, shift = 1, 0
		}
		want := make([]float32, n)
		wantSum := expSumGo(want, x, scale, shift)
		for name, sum := range expTwins {
			got := make([]float32, n+1) // nothing is written behind the end
			gotSum := sum(got, x, scale, shift)
			sameFloats(t, append(want, wantSum, 0), append(got[:n:n], gotSum, got[n]), name)
			got = slices.Clone(x)
			gotSum = sum(got, got, scale, shift)
			sameFloats(t, append(want, wantSum), append(got, gotSum), name)
		}
		require.Equal(t, maximumGo(x), maximum(x))
	}
}

func TestMaximum(t *testing.T) {
	nan := float32(math.NaN())
	for n := 1; n < 50; n++ {
		x := make([]float32, n)
		for i := range x {
			x[i] = -9
		}
		for i := range x {
			for j := range x {
				x[j], x[i] = nan, -2
				if got := maximum(x); got != -2 {
					t.Fatalf("largest of %v: got %v", x, got)
				}
				x[j], x[i] = -9, -9
			}
		}
	}
	require.Equal(t, float32(math.Inf(-1)), maximum([]float32{nan, nan}))
	require.Equal(t, float32(math.Inf(-1)), maximum(nil))
}

// expTwins are the kernels to hold against expSumGo.
var expTwins = map[string]func(dst, src []float32, scale, shift float32) float32{"best": expSum}

// sameFloats wants equal bits, but for those of NaN.
func sameFloats(t *testing.T, want, got []float32, what string) {
	t.Helper()
	require.Len(t, got, len(want), what)
	for i, w := range want {
		if w == w || got[i] == got[i] {
			require.Equal(t, math.Float32bits(w), math.Float32bits(got[i]), "%s: element %d of %d: want %v, got %v", what, i, len(want), w, got[i])
		}
	}
}

func TestSigmoids(t *testing.T) {
	var x []float32
	for v := float32(-80); v <= 80; v += 0.37 {
		x = append(x, v)
	}
	got := make([]float32, len(x))
	sigmoids(got, x)
	for i, v := range x {
		require.InEpsilon(t, 1/(1+math.Exp(-float64(v))), got[i], 4e-7, "sigmoid of %v", v)
	}
	edges := []float32{float32(math.Inf(-1)), float32(math.Inf(1)), 0}
	sigmoids(edges, edges)
	require.Equal(t, []float32{0, 1, 0.5}, edges)
}

func BenchmarkExpSum(b *testing.B) {
	x, y := make([]float32, 4096), make([]float32, 4096)
	for i := range x {
		x[i] = -float32(i) / 100
	}
	for name, sum := range expTwins {
		b.Run(name, func(b *testing.B) {
			b.SetBytes(int64(len(x)) * 4)
			for b.Loop() {
				sum(y, x, 1, 1)
			}
		})
	}
}
