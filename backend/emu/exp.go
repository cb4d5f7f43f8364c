package emu

import "math"

// The exponential in FP32, because math.Exp in float64 costs several times as
// much and every consumer here rounds to FP32 anyway. The products are rounded
// by explicit conversions, so that no compiler fuses them into the additions
// and all architectures give the same bits.

// expf is e^x within 1.5 ulp, subnormal results within one unit: NaN stays
// NaN, above the range of float32 it is +Inf, below it 0.
//
// e^x = 2^n·e^r with n = round(x/ln 2) and |r| ≤ ln 2 / 2. The subtraction of
// n·ln 2 is exact in its first part, whose factor has 10 bits; the polynomial
// for e^r is that of Cephes' expf. 2^n is multiplied in two halves because n
// runs from -150 to 128, beyond what one float32 exponent can hold.
func expf(x float32) float32 {
	const (
		log2e = 1.44269504088896341
		ln2Hi = 0.693359375
		ln2Lo = -2.12194440e-4
		// Adding this leaves the integer nearest to the other summand in the
		// low bits of the sum.
		round = 3 << 22
		// Beyond these the result is 0 and +Inf whatever the argument.
		lowest, highest = -104, 89
	)
	if x < lowest {
		x = lowest
	}
	if x > highest {
		x = highest
	}
	shifted := float32(x*log2e) + round
	n := int32(math.Float32bits(shifted)) - int32(0x4b400000)
	nf := shifted - round
	r := x - float32(nf*ln2Hi) - float32(nf*ln2Lo)

	p := float32(1.9875691500e-4)
	p = float32(p*r) + 1.3981999507e-3
	p = float32(p*r) + 8.3334519073e-3
	p = float32(p*r) + 4.1665795894e-2
	p = float32(p*r) + 1.6666665459e-1
	p = float32(p*r) + 5.0000001201e-1
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

// sigmoids is dst = 1/(1 + e^−x), elementwise; dst may be x. The sum of the
// exponentials that comes with them is of no use here.
func sigmoids(dst, x []float32) {
	expSum(dst, x, -1, 0)
	for i, e := range dst {
		dst[i] = 1 / (1 + e)
	}
}
