package fp8

import "math"

// Expansion is the scale s, the power k and the center c of a block of values whose range is
// expanded, or contracted, to that of its format (COAT, arXiv 2410.19313):
//
//	value = sign(code) · (|code|·s)^(1/k) · c
//
// Logarithms and powers are in float64, from sums and products alone, so that all processors
// compute the same bits.
type Expansion [ExpansionElems]float32

// ExpansionElems is the number of values in an Expansion.
const ExpansionElems = 3

// Compress replaces values of the block by those to cast: sign(x) · (|x|/c)^k / s.
func (e Expansion) Compress(x []float32) {
	scale, power, center := log2(float64(e[0])), float64(e[1]), log2(float64(e[2]))
	for i, v := range x {
		if v != 0 && v-v == 0 {
			x[i] = sign(exp2(float64(power*(log2(math.Abs(float64(v)))-center))-scale), v)
		}
	}
}

// Expand replaces codes, decoded without a scale, by the values of the block.
func (e Expansion) Expand(x []float32) {
	scale, power, center := log2(float64(e[0])), 1/float64(e[1]), float64(e[2])
	for i, v := range x {
		if v != 0 && v-v == 0 {
			x[i] = sign(exp2(float64((log2(math.Abs(float64(v)))+scale)*power))*center, v)
		}
	}
}

func sign(magnitude float64, of float32) float32 {
	return float32(math.Copysign(magnitude, float64(of)))
}

// powerStep is the granularity of k, and its smallest value; 1/powerStep is the largest.
const powerStep = 1. / 16

// ExpansionOf returns the expansion of a block to a format with this largest value, and false if
// the block is not finite. With a and b the largest and the smallest magnitude other than 0:
//
//	k = ⌊16·log2(limit²/2)/log2(a/b)⌋/16 in [1/16, 16], 1 if a = b      c = √(a·b)
//	s = (a/c)^k / limit
//
// A block of zeros has s = k = c = 1.
func ExpansionOf(x []float32, limit float32) (e Expansion, ok bool) {
	smallest, largest := float32(math.Inf(1)), float32(0)
	for _, v := range x {
		if v-v != 0 {
			return e, false
		}
		if v = max(v, -v); v > 0 {
			smallest, largest = min(smallest, v), max(largest, v)
		}
	}
	if largest == 0 {
		return Expansion{1, 1, 1}, true
	}
	top, k := log2(float64(largest)), 1.
	if span := top - log2(float64(smallest)); span > 0 {
		k = math.Floor(log2(float64(limit)*float64(limit)/2)/span/powerStep) * powerStep
		k = min(max(k, powerStep), 1/powerStep)
	}
	center := float32(math.Sqrt(float64(largest) * float64(smallest)))
	scale := float32(exp2(float64(k*(top-log2(float64(center))))) / float64(limit))
	return Expansion{scale, float32(k), center}, true
}

// log2 returns the binary logarithm of a positive finite x that is normal in float64, to within 1e-11.
func log2(x float64) float64 {
	bits := math.Float64bits(x)
	// The significand in [√½, √2) and its exponent.
	const rootHalf = 0x3fe6a09e667f3bcd
	exponent := int64(bits-rootHalf) >> 52
	m := math.Float64frombits(bits - uint64(exponent)<<52)
	// log2 m = 2/ln 2 · artanh t
	t := (m - 1) / (m + 1)
	u := t * t
	sum := 1. / 13
	for _, c := range [...]float64{1. / 11, 1. / 9, 1. / 7, 1. / 5, 1. / 3, 1} {
		sum = float64(sum*u) + c
	}
	return float64(exponent) + float64(float64(t*sum)*(2/math.Ln2))
}

// exp2 returns 2^x to within 1e-9 of its value; 0 or infinity beyond float32's exponents.
func exp2(x float64) float64 {
	switch {
	case x < -200:
		return 0
	case x > 200:
		return math.Inf(1)
	}
	whole := math.Floor(x + 0.5)
	f := (x - whole) * math.Ln2
	sum := 1. / 40320
	for _, c := range [...]float64{1. / 5040, 1. / 720, 1. / 120, 1. / 24, 1. / 6, 1. / 2, 1, 1} {
		sum = float64(sum*f) + c
	}
	return math.Float64frombits(uint64(int64(whole)+1023)<<52) * sum
}
