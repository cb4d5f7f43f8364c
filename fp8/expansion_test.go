package fp8

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

// stored returns a block after a cast to d and back, with an expansion or, if e is nil, with the
// scale of its amax.
func stored(d DType, x []float32, e *Expansion) []float32 {
	y := append([]float32(nil), x...)
	scale, _ := ScaleFor(Amax(x), d.Max(), false)
	if e != nil {
		scale = 1
		e.Compress(y)
	}
	for i, v := range y {
		y[i] = d.Float32(d.Nearest(v*scale, Saturate)) / scale
	}
	if e != nil {
		e.Expand(y)
	}
	return y
}

// relativeRMS returns the root of the mean squared relative error of y.
func relativeRMS(x, y []float32) float64 {
	sum := 0.0
	for i := range x {
		r := float64(y[i])/float64(x[i]) - 1
		sum += r * r
	}
	return math.Sqrt(sum / float64(len(x)))
}

// Blocks of 128 elements, log-uniform over a ratio R of magnitudes. The narrower a block, the
// larger its k and the smaller its error; a block wider than E4M3 loses nothing to underflow.
func TestExpansionLowersTheError(t *testing.T) {
	for _, test := range []struct{ ratio, low, high float64 }{
		{1e1, 3.2, 3.6}, {1e2, 1.6, 1.9}, {1e3, 1.1, 1.4}, {1e4, 0.85, 1.1}, {1e5, 0.95, 1.1}, {1e6, 4, 10},
	} {
		r := rand.New(rand.NewPCG(1, 2))
		plain, expanded := 0.0, 0.0
		for range 200 {
			x := make([]float32, 128)
			for i := range x {
				x[i] = float32(1e-7 * math.Pow(test.ratio, r.Float64()))
			}
			x[0], x[1] = 1e-7, float32(1e-7*test.ratio)
			e, ok := ExpansionOf(x, E4M3.Max())
			require.True(t, ok)
			plain += relativeRMS(x, stored(E4M3, x, nil))
			expanded += relativeRMS(x, stored(E4M3, x, &e))
		}
		gain := plain / expanded
		t.Logf("R = %.0e: gain %.2f", test.ratio, gain)
		require.Greater(t, gain, test.low, "R = %g", test.ratio)
		require.Less(t, gain, test.high, "R = %g", test.ratio)
	}
}

// Without the exclusion of zeros, the smallest magnitude would make k tiny: such a block loses
// its values.
func TestExpansionIgnoresZeros(t *testing.T) {
	x := make([]float32, 128)
	for i := range x {
		x[i] = float32(i)
	}
	e, ok := ExpansionOf(x, E4M3.Max())
	require.True(t, ok)
	require.Less(t, relativeRMS(x[1:], stored(E4M3, x, &e)[1:]), 0.02)
	control := append([]float32{1e-30}, x[1:]...)
	e, _ = ExpansionOf(control, E4M3.Max())
	require.InDelta(t, 0.125, e[1], 0.0001)
	require.Greater(t, relativeRMS(x[1:], stored(E4M3, x, &e)[1:]), 0.15)
}

func TestExpansionEdges(t *testing.T) {
	nan, inf := float32(math.NaN()), float32(math.Inf(1))
	for _, test := range []struct {
		x []float32
		k float32
	}{
		{[]float32{0, 0, 0}, 1},
		{[]float32{-3, 0, 3, 3}, 1},
		{[]float32{1, 1.0000001}, 16},
		{[]float32{100352, 1}, 1},
		{[]float32{1e38, math.SmallestNonzeroFloat32}, 0.0625},
		{[]float32{1.4e-45, 2.8e-45, 0}, 16},
	} {
		e, ok := ExpansionOf(test.x, E4M3.Max())
		require.True(t, ok)
		require.Equal(t, test.k, e[1], "%v", test.x)
		for i, v := range stored(E4M3, test.x, &e) {
			if test.k >= 1 { // a smaller power magnifies the error of the cast
				require.InDelta(t, test.x[i], v, 0.5*math.Abs(float64(test.x[i])), "%v: %v", test.x, e)
			}
			require.Equal(t, math.Signbit(float64(test.x[i])), math.Signbit(float64(v)))
			require.False(t, v == 0 && test.x[i] != 0, "nothing underflows")
		}
	}
	for _, x := range [][]float32{{1, nan}, {1, inf}, {-inf, 0}} {
		_, ok := ExpansionOf(x, E4M3.Max())
		require.False(t, ok)
	}
	x := []float32{nan, inf, 0}
	Expansion{1, 2, 3}.Compress(x)
	Expansion{1, 2, 3}.Expand(x)
	require.True(t, x[0] != x[0] && x[1] == inf && x[2] == 0)
}

// Logarithms and powers are those of package math, far below the error of any cast.
func TestBinaryLogarithm(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	for range 100000 {
		x := math.Exp2(300*r.Float64() - 150)
		require.InDelta(t, math.Log2(x), log2(x), 1e-10, "%v", x)
		y := 400*r.Float64() - 200
		require.InEpsilon(t, math.Exp2(y), exp2(y), 1e-9, "%v", y)
	}
	for e := -1000; e < 1000; e++ {
		require.Equal(t, float64(e), log2(math.Ldexp(1, e)))
	}
}
