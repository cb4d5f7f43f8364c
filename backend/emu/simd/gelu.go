package simd

import "math"

// GELU and its gradient in FP32. For a = |x|, Φ(−a) is e^(−a²/2)·m(a), where m is Mills'
// ratio divided by √(2π). The product keeps the relative precision of small results for
// negative x. With d = a/(a + 4), m(a) is (1−d)·p(d), and a·m(a) is 4·d·p(d); p is a polynomial.

const (
	// Beyond this magnitude of x, Φ(x) rounds to 0 or 1, and x·φ(x) to 0.
	geluHighest = 15
	// Adding geluRound to n leaves n + 64 in the low bits of the sum.
	geluRound = expRound + 64
	// halfSquarePower includes 2^64, so that it is a normal number for any a. The last
	// product removes the power of two.
	geluScale = 0x1p-64

	// The polynomial of degree 9 in d − geluCenter is p(d) within 9e-9 up to a = 13.4; for
	// a larger a, GELU is subnormal. It minimizes the largest relative error. Each
	// coefficient was rounded before the fit of the remaining ones.
	geluCenter = 0.3125
	geluP9     = -0.016183989122509956
	geluP8     = 0.039622604846954346
	geluP7     = 0.011490230448544025
	geluP6     = -0.10140790045261383
	geluP5     = 0.0332576222717762
	geluP4     = 0.258308470249176
	geluP3     = -0.5660518407821655
	geluP2     = 0.6506425142288208
	geluP1     = -0.49511972069740295
	geluP0     = 0.26219066977500916

	geluPeak = 0.398942280401432678 // φ(0) = 1/√(2π)
)

// geluConstants are the constants of GELU, in the order in which the assembly reads them.
//
//lint:ignore U1000 used in assembly
var geluConstants = [19]float32{
	geluHighest, -0.5, geluRound, 4, geluCenter,
	geluP9, geluP8, geluP7, geluP6, geluP5, geluP4, geluP3, geluP2, geluP1, geluP0,
	4 * geluScale, 1 - geluCenter, geluPeak, geluScale,
}

// GELU computes dst = x·Φ(x), with the distribution function Φ of the standard normal
// distribution, within 5 ulp where the result is a normal number. NaN stays NaN, and −Inf
// gives NaN, as −Inf·0 does. dst may be x.
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
		a := geluMagnitude(v)
		d, p := mills(a)
		tail := halfSquarePower(a) * d * p * (4 * geluScale) // a·Φ(−a)
		dst[i] = float32(v*unitStep(v)) - float32(tail)
	}
}

// GELUGradient computes dx = dy·(Φ(x) + x·φ(x)), with the density φ of the standard
// normal distribution. The error of the sum is at most 4.5 ulp of its larger term; the terms
// cancel around x = −0.75. NaN and infinite x give NaN. dx may be either operand.
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
		dx[i] = dy[i] * geluSlope(v)
	}
}

// geluSlope returns Φ(v) + v·φ(v). At v = −a this is Φ(−a) − a·φ(a), the tail; at v = a it
// is 1 minus the tail.
func geluSlope(v float32) float32 {
	a := geluMagnitude(v)
	d, p := mills(a)
	// The assembly has no register for d beside d − geluCenter.
	ratio := float32(p * ((1 - geluCenter) - (d - geluCenter)))
	tail := halfSquarePower(a) * (ratio - float32(a*geluPeak)) * geluScale
	signed := math.Float32frombits(math.Float32bits(tail) ^ math.Float32bits(v)&(1<<31))
	return float32(v*0) + unitStep(v) - signed // v·0 is NaN for infinite v
}

// geluMagnitude returns |v|, at most geluHighest. NaN stays NaN.
func geluMagnitude(v float32) float32 {
	a := math.Float32frombits(math.Float32bits(v) &^ (1 << 31))
	if a > geluHighest {
		a = geluHighest
	}
	return a
}

// unitStep returns 0 if v has a sign, otherwise 1.
func unitStep(v float32) float32 { return float32(1 - math.Float32bits(v)>>31) }

// halfSquarePower returns 2^64·e^(−a²/2) within 1.5 ulp, for a up to geluHighest. It
// computes e^y as exp does, and adds the rounding error of y = −a²/2 to the remainder r.
// float32 can represent that error.
func halfSquarePower(a float32) float32 {
	h := a * -0.5
	y := float32(h * a)
	low := float32(float64(h)*float64(a) - float64(y)) // exact; the assembly uses one FMA
	shifted := float32(y*log2e) + geluRound
	n := shifted - geluRound
	r := y - float32(n*ln2Hi) - float32(n*ln2Lo) + low
	return math.Float32frombits(math.Float32bits(expSeries(r)) + math.Float32bits(shifted)<<23)
}

// mills returns d and p(d).
func mills(a float32) (d, p float32) {
	d = a / (a + 4)
	z := d - geluCenter
	p = float32(geluP9)
	p = float32(p*z) + geluP8
	p = float32(p*z) + geluP7
	p = float32(p*z) + geluP6
	p = float32(p*z) + geluP5
	p = float32(p*z) + geluP4
	p = float32(p*z) + geluP3
	p = float32(p*z) + geluP2
	p = float32(p*z) + geluP1
	p = float32(p*z) + geluP0
	return d, p
}
