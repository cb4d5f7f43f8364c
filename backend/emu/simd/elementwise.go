package simd

import "math"

// Add is dst += x; dst may be x.
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

// Multiply is dst = x ⊙ y; dst may be either.
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

// Scale is x *= factor.
func Scale(x []float32, factor float32) {
	n := wholeVectors(len(x))
	if n > 0 {
		scaleVectors(&x[0], n, factor)
	}
	scaleGo(x[n:], factor)
}

func scaleGo(x []float32, factor float32) {
	for i := range x {
		x[i] *= factor
	}
}

// MaxMagnitudes is dst = max(|dst|, |x|), by the order of the bits without the
// sign: infinity is larger than any number, and NaN, whose bits are kept, larger
// than infinity.
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

// magnitude is the bits of |x|, which are ordered like the magnitudes.
func magnitude(x float32) uint32 { return math.Float32bits(x) &^ (1 << 31) }
