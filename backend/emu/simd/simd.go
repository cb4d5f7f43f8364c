// Package simd has the vector kernels of the emulator: arithmetic on slices of
// float32, and transposes of codes. It knows nothing of tensors, ops or threads.
//
// # Kernels and twins
//
// Each kernel is an exported function and, next to it, its twin in plain Go,
// named …Go. The twin is the specification: it runs where there is no assembly
// (-tags noasm, other processors), takes what does not fill whole vectors, and
// the tests hold the assembly to its bits. NaN is NaN, with any payload.
//
// amd64.go, arm64.go and generic.go bind the assembly; on amd64 a kernel is one
// macro that makes the AVX-512 and the AVX2 form of it.
//
// # Bits
//
// Results are the same on every machine. A product is rounded before it is
// added, by an explicit conversion in Go and by separate instructions in
// assembly, except where the product is exact. A sum runs in a fixed number of
// lanes, element i going to lane i mod lanes; then the upper half of the lanes
// is added to the lower one until one is left. The order depends neither on the
// width of the vectors nor on where a slice begins.
//
// # Lengths and aliasing
//
// The slice that the doc comment names first gives the length; the others must
// be as long or longer. Slices need no alignment. A result may be the very same
// slice as an operand where the comment says so, and must not overlap operands
// in any other way.
package simd

// wholeVectors is how many of n elements the assembly takes: it works on
// sixteen at a time, whatever the width of its vectors, and on one such at
// least. The twins take the rest.
func wholeVectors(n int) int {
	if !haveVectors {
		return 0
	}
	return n &^ 15
}

// fold adds up lanes, of which there is a power of two.
func fold[F float32 | float64](lanes []F) F {
	for half := len(lanes) / 2; half > 0; half /= 2 {
		for i, upper := range lanes[half : 2*half] {
			lanes[i] += upper
		}
	}
	return lanes[0]
}
