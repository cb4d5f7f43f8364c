package emu

import "math"

// The exponential in FP32, because math.Exp in float64 costs several times as
// much and every consumer here rounds to FP32 anyway. The products are rounded
// by explicit conversions, so that no compiler fuses them into the additions
// and all architectures give the same bits.

// The constants of expf. The subtraction of n·ln 2 is exact in its first part,
// whose factor has 10 bits; the polynomial is that of Cephes' expf.
const (
	log2e = 1.44269504088896341
	ln2Hi = 0.693359375
	ln2Lo = -2.12194440e-4
	// Adding expRound leaves the integer nearest to the other summand in the
	// low bits of the sum.
	expRound = 3 << 22
	// Beyond these the result is 0 and +Inf whatever the argument.
	expLowest, expHighest = -104, 89

	expP5 = 1.9875691500e-4
	expP4 = 1.3981999507e-3
	expP3 = 8.3334519073e-3
	expP2 = 4.1665795894e-2
	expP1 = 1.6666665459e-1
	expP0 = 5.0000001201e-1
)

// expf is e^x within 1.5 ulp, subnormal results within one unit: NaN stays
// NaN, above the range of float32 it is +Inf, below it 0.
//
// e^x = 2^n·e^r with n = round(x/ln 2) and |r| ≤ ln 2 / 2. 2^n is multiplied in
// two halves because n runs from -150 to 128, beyond what one float32 exponent
// can hold.
func expf(x float32) float32 {
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

	p := float32(expP5)
	p = float32(p*r) + expP4
	p = float32(p*r) + expP3
	p = float32(p*r) + expP2
	p = float32(p*r) + expP1
	p = float32(p*r) + expP0
	p = float32(float32(p*r)*r) + r + 1

	half := n >> 1
	return p * powerOfTwo(half) * powerOfTwo(n-half)
}

// powerOfTwo is 2^n for exponents of normal numbers.
func powerOfTwo(n int32) float32 { return math.Float32frombits(uint32(n+127) << 23) }

// expSumGo is the specification of expSum: dst = exp(src·scale − shift),
// elementwise, and the sum of dst, for which element i goes to lane i mod 16;
// dst may be src.
func expSumGo(dst, src []float32, scale, shift float32) float32 {
	var lanes [16]float32
	expLanes(&lanes, dst, src, scale, shift)
	return foldLanes(&lanes)
}

// expLanes is expSumGo without the last step.
func expLanes(lanes *[16]float32, dst, src []float32, scale, shift float32) {
	dst = dst[:len(src)]
	for i, x := range src {
		e := expf(float32(x*scale) - shift)
		dst[i] = e
		lanes[i%16] += e
	}
}

func foldLanes(lanes *[16]float32) float32 {
	for half := 8; half > 0; half /= 2 {
		for i := range half {
			lanes[i] += lanes[i+half]
		}
	}
	return lanes[0]
}

// maximumGo is the specification of maximum: the largest number in x; NaN is
// passed over, and -Inf is the largest of none.
func maximumGo(x []float32) float32 {
	top := float32(math.Inf(-1))
	for _, v := range x {
		if v > top {
			top = v
		}
	}
	return top
}

// sigmoid is 1/(1 + e^−x).
func sigmoid(x float32) float32 { return 1 / (1 + expf(-x)) }
