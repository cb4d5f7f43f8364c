package simd

import "math"

// Ungated activations. GELU is the exact one, in float64 and with erfc, which keeps the
// precision of small results for negative x.

// ReLU computes dst = max(x, 0); NaN stays NaN; dst may be x.
func ReLU(dst, x []float32) {
	x = x[:len(dst)]
	n := wholeVectors(len(dst))
	if haveVectors && n > 0 {
		reluVectors(&dst[0], &x[0], n)
	}
	reluGo(dst[n:], x[n:])
}

//go:noescape
func reluVectors(dst, x *float32, n int)

func reluGo(dst, x []float32) {
	for i, v := range x[:len(dst)] {
		if v < 0 { // false for NaN
			v = 0
		}
		dst[i] = v
	}
}

// ReLUGradient computes dx = dy where x > 0 or x is NaN, and 0 elsewhere; dx may be
// either operand.
func ReLUGradient(dx, x, dy []float32) {
	x, dy = x[:len(dx)], dy[:len(dx)]
	n := wholeVectors(len(dx))
	if haveVectors && n > 0 {
		reluGradientVectors(&dx[0], &x[0], &dy[0], n)
	}
	reluGradientGo(dx[n:], x[n:], dy[n:])
}

//go:noescape
func reluGradientVectors(dx, x, dy *float32, n int)

func reluGradientGo(dx, x, dy []float32) {
	for i, v := range x[:len(dx)] {
		d := dy[i]
		if v <= 0 {
			d = 0
		}
		dx[i] = d
	}
}

// GELU computes dst = x·Φ(x), with the distribution function Φ of the standard normal
// distribution; dst may be x.
func GELU(dst, x []float32) {
	x = x[:len(dst)]
	n := wholeVectors(len(dst))
	if haveVectors && n > 0 {
		geluVectors(&dst[0], &x[0], n)
	}
	geluGo(dst[n:], x[n:])
}

//go:noescape
func geluVectors(dst, x *float32, n int)

func geluGo(dst, x []float32) {
	for i, v := range x[:len(dst)] {
		cdf, _ := normal(float64(v))
		dst[i] = v * float32(cdf)
	}
}

// GELUGradient computes dx = dy·(Φ(x) + x·φ(x)), with the density φ of the standard
// normal distribution; dx may be either operand.
func GELUGradient(dx, x, dy []float32) {
	x, dy = x[:len(dx)], dy[:len(dx)]
	n := wholeVectors(len(dx))
	if haveVectors && n > 0 {
		geluGradientVectors(&dx[0], &x[0], &dy[0], n)
	}
	geluGradientGo(dx[n:], x[n:], dy[n:])
}

//go:noescape
func geluGradientVectors(dx, x, dy *float32, n int)

func geluGradientGo(dx, x, dy []float32) {
	for i, v := range x[:len(dx)] {
		cdf, density := normal(float64(v))
		dx[i] = dy[i] * float32(cdf+float64(float64(v)*density))
	}
}

// normal returns the distribution function Φ and the density φ of the standard normal
// distribution, with a relative error of at most 4e-9 where float32 can represent them.
//
// Φ(−x) is half of erfc(z), z = x/√2, and erfc(z) = e^(−z²)·t·p(t) with
// t = 1/(1 + 0.4·z): p hardly varies, and its polynomial of degree 10 is the
// Chebyshev interpolation over 0 ≤ z ≤ 10. So Φ and φ share one exponential.
//
// The exponential is 2^n·e^r with n = round(y/ln 2) and |r| ≤ ln 2 / 2, where
// the Taylor series of degree 11 is exact to 1e-14. Explicit conversions round the
// products, as in exp.
func normal(x float64) (cdf, density float64) {
	c := &normalConstants
	y := float64(c.minusHalf*x) * x
	if y < c.lowest {
		y = c.lowest
	}
	shifted := float64(y*c.log2e) + c.round
	n := shifted - c.round
	r := y - float64(n*c.ln2Hi) - float64(n*c.ln2Lo)
	e := c.series[0]
	for _, k := range c.series[1:] {
		e = float64(e*r) + k
	}
	e = math.Float64frombits(math.Float64bits(e) + math.Float64bits(shifted)<<52)

	t := c.one / (c.one + float64(c.slope*math.Abs(x)))
	p := c.erfc[0]
	for _, k := range c.erfc[1:] {
		p = float64(p*t) + k
	}
	cdf = float64(float64(c.half*e)*t) * p
	if x > 0 {
		cdf = c.one - cdf
	}
	return cdf, float64(e * c.peak)
}

// normalTable holds the constants of normal, in the order in which the assembly
// reads them.
type normalTable struct {
	minusHalf float64
	lowest    float64 // below it results underflow float32; from it on 2^n is normal
	log2e     float64
	round     float64 // adding it leaves the nearest integer in the low bits
	ln2Hi     float64 // has so few bits that its product with n is exact
	ln2Lo     float64
	series    [12]float64 // of e^r, highest power first
	slope     float64
	one       float64
	erfc      [11]float64 // p, highest power first
	half      float64
	peak      float64 // φ(0)
}

var normalConstants = normalTable{
	minusHalf: -0.5,
	lowest:    -700,
	log2e:     math.Log2E,
	round:     3 << 51,
	ln2Hi:     6.93147180369123816490e-01,
	ln2Lo:     1.90821492927058770002e-10,
	series: [12]float64{
		1. / 39916800, 1. / 3628800, 1. / 362880, 1. / 40320, 1. / 5040, 1. / 720,
		1. / 120, 1. / 24, 1. / 6, 1. / 2, 1, 1,
	},
	slope: 0.4 / math.Sqrt2,
	one:   1,
	erfc: [11]float64{
		-0.015730949435437025, 0.061826405008530041, -0.034846026476241456, -0.15711067440626503,
		0.22812908841192856, -0.086185987316657692, 0.18946927220301979, 0.15247153727591413,
		0.2109385251468916, 0.22534907350001721, 0.22568973515720568,
	},
	half: 0.5,
	peak: 1 / (math.SqrtPi * math.Sqrt2),
}
