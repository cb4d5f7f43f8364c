package simd

import "math"

// The exponential in FP32: math.Exp in float64 costs several times as much, and all
// callers round to FP32 anyway.

// The constants of exp. ln2Hi has 10 bits, so that n·ln2Hi and its subtraction are
// exact; the polynomial is that of Cephes' expf.
const (
	log2e = 1.44269504088896341
	ln2Hi = 0.693359375
	ln2Lo = -2.12194440e-4
	// Adding expRound to x leaves the integer nearest to x in the low bits of the sum.
	expRound = 3 << 22
	// Below expLowest the result is 0, above expHighest +Inf.
	expLowest, expHighest = -104, 89
	// Up to this magnitude of x, 2^n is a normal number, as is the result.
	expNormal = 86

	expP5 = 1.9875691500e-4
	expP4 = 1.3981999507e-3
	expP3 = 8.3334519073e-3
	expP2 = 4.1665795894e-2
	expP1 = 1.6666665459e-1
	expP0 = 5.0000001201e-1
)

// expConstants are the constants of exp, in the order in which the assembly reads them.
//
//lint:ignore U1000 used in assembly
var expConstants = [14]float32{
	expLowest, expHighest, expNormal, expRound, log2e, ln2Hi, ln2Lo, expP5, expP4, expP3, expP2, expP1, expP0, 1,
}

// exp returns e^x within 1.5 ulp, subnormal results within one unit. NaN stays NaN;
// results above the range of float32 are +Inf, below it 0.
//
// e^x = 2^n·e^r with n = round(x/ln 2) and |r| ≤ ln 2 / 2. Two multiplications apply
// 2^n, because n runs from -150 to 128, beyond the range of one float32 exponent.
func exp(x float32) float32 {
	if x < expLowest {
		x = expLowest
	}
	if x > expHighest {
		x = expHighest
	}
	shifted := float32(x*log2e) + expRound
	n := int32(math.Float32bits(shifted)) - int32(0x4b400000)
	nf := shifted - expRound
	r := x - float32(nf*ln2Hi) - float32(nf*ln2Lo)

	p := expSeries(r)
	half := n >> 1
	return p * powerOfTwo(half) * powerOfTwo(n-half)
}

// expSeries returns e^r for |r| ≤ ln 2 / 2.
func expSeries(r float32) float32 {
	p := float32(expP5)
	p = float32(p*r) + expP4
	p = float32(p*r) + expP3
	p = float32(p*r) + expP2
	p = float32(p*r) + expP1
	p = float32(p*r) + expP0
	return float32(float32(p*r)*r) + r + 1
}

// powerOfTwo returns 2^n for n from -126 to 127.
func powerOfTwo(n int32) float32 { return math.Float32frombits(uint32(n+127) << 23) }

// sigmoid returns 1/(1 + e^−x).
func sigmoid(x float32) float32 { return 1 / (1 + exp(-x)) }

// ExpSum computes dst = e^(x·scale − shift), within 1.5 ulp for the rounded exponent,
// and returns the sum of dst, in 16 lanes. x gives the length; dst may be x.
func ExpSum(dst, x []float32, scale, shift float32) float32 {
	var lanes [16]float32
	dst = dst[:len(x)]
	n := wholeVectors(len(x))
	if haveVectors && n > 0 {
		sum := expLanesVectors(&lanes, &dst[0], &x[0], n, scale, shift)
		if n == len(x) {
			return sum
		}
	}
	expLanesGo(&lanes, dst[n:], x[n:], scale, shift)
	return fold(lanes[:])
}

//go:noescape
func expLanesVectors(lanes *[16]float32, dst, x *float32, n int, scale, shift float32) float32

// expLanesGo is ExpSum without the sum of the lanes.
func expLanesGo(lanes *[16]float32, dst, x []float32, scale, shift float32) {
	dst = dst[:len(x)]
	for i, v := range x {
		e := exp(float32(v*scale) - shift)
		dst[i] = e
		lanes[i%16] += e
	}
}

// Max returns the largest value in x. It ignores NaN; without other values the result is
// -Inf. If the largest is a zero, its sign is unspecified.
func Max(x []float32) float32 {
	n := wholeVectors(len(x))
	top := maxGo(x[n:])
	if haveVectors && n > 0 {
		top = max(top, maxVectors(&x[0], n))
	}
	return top
}

//go:noescape
func maxVectors(x *float32, n int) float32

func maxGo(x []float32) float32 {
	top := float32(math.Inf(-1))
	for _, v := range x {
		if v > top {
			top = v
		}
	}
	return top
}
