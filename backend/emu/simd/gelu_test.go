package simd

import (
	"math"
	"os"
	"testing"
)

func TestGELUError(t *testing.T) {
	step := uint32(4999)
	if os.Getenv("OCTET_LONG") != "" {
		step = 1
	}
	// The largest errors where the result, or a term of the gradient, is a normal number.
	var worst, worstSlope float64
	check := func(x float32) {
		v := float64(x)
		cdf, term := math.Erfc(-v/math.Sqrt2)/2, v*math.Exp(-v*v/2)/math.Sqrt(2*math.Pi)
		var y, slope [1]float32
		geluGo(y[:], []float32{x})
		geluGradientGo(slope[:], []float32{x}, []float32{1})

		unit := max(math.Abs(v*cdf), 0x1p-126)
		err := math.Abs(float64(y[0])-v*cdf) / math.Ldexp(1, math.Ilogb(unit)-23)
		unit = max(cdf, math.Abs(term), 0x1p-126)
		slopeErr := math.Abs(float64(slope[0])-(cdf+term)) / math.Ldexp(1, math.Ilogb(unit)-23)
		worst, worstSlope = max(worst, err), max(worstSlope, slopeErr)
		if err > 5 || slopeErr > 4.5 {
			t.Fatalf("x = %v: want %v and a gradient of %v, got %v and %v", x, v*cdf, cdf+term, y[0], slope[0])
		}
	}
	for bits := uint32(0); bits <= math.Float32bits(20); bits += step {
		check(math.Float32frombits(bits))
		check(-math.Float32frombits(bits))
	}
	t.Logf("largest errors: GELU %.3f ulp, gradient %.3f ulp", worst, worstSlope)
}

func TestGELUSpecial(t *testing.T) {
	eachInstructionSet(t, func(t *testing.T) {
		inf, nan, minus := float32(math.Inf(1)), float32(math.NaN()), float32(math.Copysign(0, -1))
		x := []float32{0, minus, -20, -1e30, -math.MaxFloat32, 20, 1e30, math.MaxFloat32, inf, -inf, nan, 15: 0}
		got, dy := make([]float32, len(x)), make([]float32, len(x))
		for i := range dy {
			dy[i] = 3
		}
		GELU(got, x)
		sameFloats(t, []float32{0, minus, minus, minus, minus, 20, 1e30, math.MaxFloat32, inf, nan, nan}, got[:11], "GELU")
		GELUGradient(got, x, dy)
		sameFloats(t, []float32{1.5, 1.5, 0, 0, 0, 3, 3, 3, nan, nan, nan}, got[:11], "gradient")
	})
}
