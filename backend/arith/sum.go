package arith

import "math"

// power is 2^exponent.
func power(exponent int) float32 { return float32(math.Ldexp(1, exponent)) }

// powerOf is the power of two that x counts with, at least least, and 0 for 0.
func powerOf(x, least float32) float64 {
	if x == 0 {
		return 0
	}
	_, exponent := math.Frexp(float64(x)) // of a fraction from 1/2
	return max(math.Ldexp(1, exponent-1), float64(least))
}

const leastFloat32 = 0x1p-126 // subnormals count with it, too

var canonicalNaN = math.Float32frombits(0x7fffffff)

// Fuse is one fused sum: (a[0]·b[0] + a[1]·b[1] + …)·scale + c of at most Group
// products of values of FP8 formats, whose smallest powers are leastA and leastB.
// scale is a power of two, the product of two block scales if the sum has MX and 1 if
// not, or NaN. float64 holds every step exactly, whatever the scales.
func (s *Sum) Fuse(a, b []float32, leastA, leastB float32, scale float64, c float32) float32 {
	if s.Apart && math.Abs(float64(c)) < leastFloat32 {
		c = 0
	}
	plain := float64(c)
	for i, x := range a {
		plain += float64(x) * float64(b[i]) * scale
	}
	switch {
	case math.IsNaN(plain):
		return canonicalNaN
	case math.IsInf(plain, 0):
		return float32(plain)
	}
	unit := s.largest(a, b, leastA, leastB, scale, c) / math.Ldexp(1, s.Bits)
	total := int64(0)
	for i, x := range a {
		total += int64(float64(x) * float64(b[i]) * scale / unit)
	}
	if s.Apart {
		return nearestSum(float64(total)*unit, float64(c))
	}
	total += int64(float64(c) / unit)
	return truncate(float64(total)*unit, s.Kept)
}

// largest is the power of two that terms are aligned to, at least that of a
// subnormal addend, which one of 0 has, too.
func (s *Sum) largest(a, b []float32, leastA, leastB float32, scale float64, c float32) float64 {
	largest := leastFloat32
	if !s.Apart {
		largest = max(largest, powerOf(c, 0))
	}
	for i, x := range a {
		largest = max(largest, powerOf(x, leastA)*powerOf(b[i], leastB)*scale)
	}
	return largest
}

// truncate rounds toward zero to a float32 of so many fraction bits, +0 if none is
// left. What is too large for one becomes infinity.
func truncate(x float64, kept int) float32 {
	if math.Abs(x) >= 0x1p128 {
		return float32(math.Inf(int(math.Copysign(1, x))))
	}
	y := float32(x)
	bits := math.Float32bits(y)
	if math.Abs(float64(y)) > math.Abs(x) {
		bits--
	}
	return math.Float32frombits(bits&^(1<<(23-kept)-1)) + 0
}

// nearestSum is x + y, rounded once to the nearest float32, subnormals to zero. What
// float64 loses of the sum is far below a float32's last bit, but may decide a tie:
// it makes the last bit of the float64 odd.
func nearestSum(x, y float64) float32 {
	sum := x + y
	part := sum - x
	lost := (x - (sum - part)) + (y - part)
	if bits := math.Float64bits(sum); lost != 0 && bits&1 == 0 {
		if (lost > 0) == (sum > 0) {
			bits++
		} else {
			bits--
		}
		sum = math.Float64frombits(bits)
	}
	if z := float32(sum); math.Abs(float64(z)) >= leastFloat32 {
		return z
	}
	return 0
}
