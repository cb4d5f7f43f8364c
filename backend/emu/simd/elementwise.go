package simd

import "math"

// Add computes dst += x; dst may be x.
func Add(dst, x []float32) {
	x = x[:len(dst)]
	n := wholeVectors(len(dst))
	if n > 0 {
		addVectors(&dst[0], &x[0], n)
	}
	addGo(dst[n:], x[n:])
}

func addGo(dst, x []float32) {
	x = x[:len(dst)]
	for i := range dst {
		dst[i] += x[i]
	}
}

// Multiply computes dst = x ⊙ y; dst may be either operand.
func Multiply(dst, x, y []float32) {
	x, y = x[:len(dst)], y[:len(dst)]
	n := wholeVectors(len(dst))
	if n > 0 {
		multiplyVectors(&dst[0], &x[0], &y[0], n)
	}
	multiplyGo(dst[n:], x[n:], y[n:])
}

func multiplyGo(dst, x, y []float32) {
	x, y = x[:len(dst)], y[:len(dst)]
	for i := range dst {
		dst[i] = x[i] * y[i]
	}
}

// Scale computes x *= scale.
func Scale(x []float32, scale float32) {
	n := wholeVectors(len(x))
	if n > 0 {
		scaleVectors(&x[0], n, scale)
	}
	scaleGo(x[n:], scale)
}

func scaleGo(x []float32, scale float32) {
	for i := range x {
		x[i] *= scale
	}
}

// MaxMagnitudes computes dst = max(|dst|, |x|), comparing bits without sign: infinity is
// larger than any finite value, and NaN, whose payload is kept, larger than infinity.
func MaxMagnitudes(dst, x []float32) {
	x = x[:len(dst)]
	n := wholeVectors(len(dst))
	if n > 0 {
		maxMagnitudesVectors(&dst[0], &x[0], n)
	}
	maxMagnitudesGo(dst[n:], x[n:])
}

func maxMagnitudesGo(dst, x []float32) {
	x = x[:len(dst)]
	for i, v := range x {
		dst[i] = math.Float32frombits(max(magnitude(dst[i]), magnitude(v)))
	}
}

// magnitude returns the bits of |x|, whose order is that of the magnitudes.
func magnitude(x float32) uint32 { return math.Float32bits(x) &^ (1 << 31) }
