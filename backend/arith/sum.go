package arith

import (
	"math"

	"octet/fp8"
)

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

const leastFloat32 = 0x1p-126 // the exponent of subnormals, too

var canonicalNaN = math.Float32frombits(0x7fffffff)

// Fuse is one fused sum: a[0]·b[0] + a[1]·b[1] + … + c of at most Group products of
// values of FP8 formats, whose smallest powers are leastA and leastB. float64 holds
// every step exactly.
func (s *Sum) Fuse(a, b []float32, leastA, leastB, c float32) float32 {
	if s.Apart && math.Abs(float64(c)) < leastFloat32 {
		c = 0
	}
	plain, largest := float64(c), 0.0
	if !s.Apart {
		largest = powerOf(c, leastFloat32)
	}
	for i, x := range a {
		plain += float64(x) * float64(b[i])
		largest = max(largest, powerOf(x, leastA)*powerOf(b[i], leastB))
	}
	switch {
	case math.IsNaN(plain):
		return canonicalNaN
	case math.IsInf(plain, 0):
		return float32(plain)
	case largest == 0:
		return c + 0 // -0 becomes +0
	}
	unit := largest / math.Ldexp(1, s.Bits)
	total := int64(0)
	for i, x := range a {
		total += int64(float64(x) * float64(b[i]) / unit)
	}
	if s.Apart {
		return nearestSum(float64(total)*unit, float64(c))
	}
	total += int64(float64(c) / unit)
	return truncate(float64(total)*unit, s.Kept)
}

// truncate rounds toward zero to a float32 of so many fraction bits.
func truncate(x float64, kept int) float32 {
	y := float32(x)
	bits := math.Float32bits(y)
	if math.Abs(float64(y)) > math.Abs(x) {
		bits--
	}
	return math.Float32frombits(bits &^ (1<<(23-kept) - 1))
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

// Dot is the dot product of two vectors of codes in the given formats: fused sums
// in a row, k ascending. promoted asks for the promotion that the model has.
func (m *Model) Dot(a, b []uint8, formatA, formatB fp8.DType, promoted bool) float32 {
	step := len(a)
	if promoted && m.Promote > 0 {
		step = m.Promote
	}
	x, y := formatA.Table(), formatB.Table()
	leastA, leastB := m.Sum.Least(formatA), m.Sum.Least(formatB)
	group := make([]float32, 2*m.Sum.Group)
	total := float32(0)
	for from := 0; from < len(a); from += step {
		part, end := float32(0), min(len(a), from+step)
		for l := from; l < end; l += m.Sum.Group {
			n := min(m.Sum.Group, end-l)
			left, right := group[:n], group[m.Sum.Group:][:n]
			for i := range n {
				left[i], right[i] = x[a[l+i]], y[b[l+i]]
			}
			part = m.Sum.Fuse(left, right, leastA, leastB, part)
		}
		total += part
	}
	return total
}
