package optimizer

import (
	"math"

	"octet/backend"
	"octet/backend/emu/cast"
	"octet/fp8"
)

// Moments with expanded blocks: backend.Tensor.Expand and backend.AdamW give the equations.
// Logarithms and powers are in float64, from sums and products alone, so that all processors
// compute the same bits.

// logTable returns log2 of the magnitude of each code of an 8-bit format: -Inf for 0, NaN for NaN.
func logTable(d fp8.DType) []float64 {
	list := make([]float64, 256)
	for code := range list {
		switch x := math.Abs(float64(d.Float32(uint32(code)))); {
		case x == 0:
			list[code] = math.Inf(-1)
		case x <= math.MaxFloat32:
			list[code] = log2(x)
		default:
			list[code] = x
		}
	}
	return list
}

// loadExpanded decodes elements of a block from at on, with the block's s, k and c.
func (s *State) loadExpanded(x []float32, at int, expansion []float32) {
	scale, power, center := log2(float64(expansion[0])), 1/float64(expansion[1]), float64(expansion[2])
	for i, code := range s.U8[at : at+len(x)] {
		magnitude := float32(exp2(float64((s.logs[code]+scale)*power)) * center)
		if code >= 0x80 {
			magnitude = -magnitude
		}
		x[i] = magnitude
	}
}

// storeExpanded replaces the values x of a block by their scaled powers, casts these with out
// and writes the block's s, k and c.
func (s *State) storeExpanded(out *cast.Encoder, x []float32, at int, expansion []float32) {
	if e, ok := expansionOf(x, s.limit); ok {
		copy(expansion, e[:])
	}
	scale, power, center := log2(float64(expansion[0])), float64(expansion[1]), log2(float64(expansion[2]))
	for i, v := range x {
		if v-v != 0 || v == 0 {
			continue
		}
		magnitude := exp2(float64(power*(log2(math.Abs(float64(v)))-center)) - scale)
		x[i] = float32(math.Copysign(magnitude, float64(v)))
	}
	s.store(out, x, at)
}

// powerStep is the granularity of k, and its smallest value; 1/powerStep is the largest.
const powerStep = 1. / 16

// expansionOf returns s, k and c of a block, and false if the block is not finite.
func expansionOf(x []float32, limit float32) (e [backend.ExpansionElems]float32, ok bool) {
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
		return [...]float32{1, 1, 1}, true
	}
	top, k := log2(float64(largest)), 1.
	if span := top - log2(float64(smallest)); span > 0 {
		k = math.Floor(log2(float64(limit)*float64(limit)/2)/span/powerStep) * powerStep
		k = min(max(k, powerStep), 1/powerStep)
	}
	center := float32(math.Sqrt(float64(largest) * float64(smallest)))
	scale := float32(exp2(float64(k*(top-log2(float64(center))))) / float64(limit))
	return [...]float32{scale, float32(k), center}, true
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
