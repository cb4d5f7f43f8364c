package simd

import "math"

// Add computes dst += x; dst may be x.
func Add(dst, x []float32) {
	x = x[:len(dst)]
	n := wholeVectors(len(dst))
	if haveVectors && n > 0 {
		addVectors(&dst[0], &x[0], n)
	}
	addGo(dst[n:], x[n:])
}

//go:noescape
func addVectors(dst, x *float32, n int)

func addGo(dst, x []float32) {
	x = x[:len(dst)]
	for i := range dst {
		dst[i] += x[i]
	}
}

// Butterfly computes x, y = x+y, x-y.
func Butterfly(x, y []float32) {
	y = y[:len(x)]
	n := wholeVectors(len(x))
	if haveVectors && n > 0 {
		butterflyVectors(&x[0], &y[0], n)
	}
	butterflyGo(x[n:], y[n:])
}

//go:noescape
func butterflyVectors(x, y *float32, n int)

func butterflyGo(x, y []float32) {
	y = y[:len(x)]
	for i, v := range x {
		x[i], y[i] = v+y[i], v-y[i]
	}
}

// Multiply computes dst = x ⊙ y; dst may be either operand.
func Multiply(dst, x, y []float32) {
	x, y = x[:len(dst)], y[:len(dst)]
	n := wholeVectors(len(dst))
	if haveVectors && n > 0 {
		multiplyVectors(&dst[0], &x[0], &y[0], n)
	}
	multiplyGo(dst[n:], x[n:], y[n:])
}

//go:noescape
func multiplyVectors(dst, x, y *float32, n int)

func multiplyGo(dst, x, y []float32) {
	x, y = x[:len(dst)], y[:len(dst)]
	for i := range dst {
		dst[i] = x[i] * y[i]
	}
}

// Scale computes x *= scale.
func Scale(x []float32, scale float32) {
	n := wholeVectors(len(x))
	if haveVectors && n > 0 {
		scaleVectors(&x[0], n, scale)
	}
	scaleGo(x[n:], scale)
}

// ScaleRows multiplies rows of n elements, ld apart, by a scale each.
func ScaleRows(x []float32, ld, n int, scales []float32) {
	whole := wholeVectors(n)
	for r, scale := range scales {
		row := x[r*ld:][:n]
		if haveVectors && whole > 0 {
			scaleVectors(&row[0], whole, scale)
		}
		if whole < n {
			scaleGo(row[whole:], scale)
		}
	}
}

//go:noescape
func scaleVectors(x *float32, n int, scale float32)

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
	if haveVectors && n > 0 {
		maxMagnitudesVectors(&dst[0], &x[0], n)
	}
	maxMagnitudesGo(dst[n:], x[n:])
}

//go:noescape
func maxMagnitudesVectors(dst, x *float32, n int)

func maxMagnitudesGo(dst, x []float32) {
	x = x[:len(dst)]
	for i, v := range x {
		dst[i] = math.Float32frombits(max(magnitude(dst[i]), magnitude(v)))
	}
}

// magnitude returns the bits of |x|, whose order is that of the magnitudes.
func magnitude(x float32) uint32 { return math.Float32bits(x) &^ (1 << 31) }
