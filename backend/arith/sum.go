package arith

import "math"

// power returns 2^exponent.
func power(exponent int) float32 { return float32(math.Ldexp(1, exponent)) }

// powerOf returns the power of two with which x is aligned, at least minPower; 0 for 0.
func powerOf(x, minPower float32) float64 {
	if x == 0 {
		return 0
	}
	_, exponent := math.Frexp(float64(x)) // the fraction is in [1/2, 1)
	return max(math.Ldexp(1, exponent-1), float64(minPower))
}

const minNormal = 0x1p-126 // of float32; its subnormals are aligned with this power, too

var canonicalNaN = math.Float32frombits(0x7fffffff)

// Fuse returns one fused sum, (a[0]·b[0] + a[1]·b[1] + …)·scale + c, of at most Group
// products of FP8 values. minA and minB are MinPower of their formats. scale is the
// product of two block scales (a power of two, or NaN) if the sum has MX, otherwise 1.
// float64 holds every step exactly, for all scales.
func (s *Sum) Fuse(a, b []float32, minA, minB float32, scale float64, c float32) float32 {
	if s.AddendLast && math.Abs(float64(c)) < minNormal {
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
	unit := s.largest(a, b, minA, minB, scale, c) / math.Ldexp(1, s.Bits)
	total := int64(0)
	for i, x := range a {
		total += int64(float64(x) * float64(b[i]) * scale / unit)
	}
	if s.AddendLast {
		return nearestSum(float64(total)*unit, float64(c))
	}
	total += int64(float64(c) / unit)
	return truncate(float64(total)*unit, s.Kept)
}

// FuseExact is Fuse for a sum with Exact. scaleA and scaleB are the block scales, in a format
// whose MinPower is minScale, one for each Exact products.
func (s *Sum) FuseExact(a, b, scaleA, scaleB []float32, minScale, c float32) float32 {
	largest, plain := max(minNormal, powerOf(c, 0)), float64(c)
	var list [8]float64
	terms := list[:0]
	for l := 0; l < len(a); l += s.Exact {
		i := l / s.Exact
		term, power := s.exactTerm(a[l:min(len(a), l+s.Exact)], b[l:], scaleA[i], scaleB[i], minScale)
		terms = append(terms, term)
		largest, plain = max(largest, power), plain+term
	}
	switch {
	case math.IsNaN(plain):
		return canonicalNaN
	case math.IsInf(plain, 0):
		return float32(plain)
	}
	unit := largest / math.Ldexp(1, s.Bits)
	total := int64(float64(c) / unit)
	for _, t := range terms {
		total += int64(t / unit)
	}
	return truncate(float64(total)*unit, s.Kept)
}

// exactTerm returns the exact sum of products times their scales, and the power of two with
// which it is aligned: that of the scales, 0 if one is 0.
func (s *Sum) exactTerm(a, b []float32, scaleA, scaleB, minScale float32) (term, power float64) {
	sum := 0.0
	for i, x := range a {
		sum += float64(x) * float64(b[i])
	}
	return sum * float64(scaleA) * float64(scaleB), powerOf(scaleA, minScale) * powerOf(scaleB, minScale)
}

// largest returns the power of two that the terms are aligned to. It is at least that of
// an FP32 subnormal, which an addend of 0 has, too.
func (s *Sum) largest(a, b []float32, minA, minB float32, scale float64, c float32) float64 {
	largest := minNormal
	if !s.AddendLast {
		largest = max(largest, powerOf(c, 0))
	}
	for i, x := range a {
		largest = max(largest, powerOf(x, minA)*powerOf(b[i], minB)*scale)
	}
	return largest
}

// truncate rounds x toward zero to a float32 of kept fraction bits; a zero result is +0.
// Magnitudes from 2^128 become infinity.
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

// nearestSum returns x + y, rounded once to the nearest float32; subnormal results become
// zero. The error of the float64 sum is far below a float32's last bit, but may decide a
// tie: an inexact float64 sum gets an odd last bit.
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
	if z := float32(sum); math.Abs(float64(z)) >= minNormal {
		return z
	}
	return 0
}
