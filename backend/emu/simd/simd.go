// Package simd has the vector kernels of emu: arithmetic on slices of float32, and
// transposes of codes. It does not depend on tensors, ops or threads.
//
// # Kernels and twins
//
// Each kernel is an exported function with a twin in plain Go beside it, named …Go.
// The twin is the specification: it runs where there is no assembly (-tags noasm, other
// processors), and on the elements that do not fill whole vectors. Tests require the
// bits of the twin from the assembly, except for the payload of NaN.
//
// The assembly, named …Vectors, is declared once, beside the twin. It takes a positive
// number of elements, a multiple of 16 or of the number of lanes. A kernel with lanes sets
// them, so that the twin can add the remaining elements; a returned sum excludes those.
//
// On arm64 …Vectors is the NEON kernel. On amd64 it is a jump (WIDEST) to one of two
// versions, AVX-512 and AVX2, which one macro makes. Other builds have no assembly: each
// call is guarded by haveVectors, a constant false there, so that the linker needs no symbol.
// MaxRows, WeighRows, ScoreGradientRows and the transposes differ more, and have a …Vectors
// in amd64.go, arm64.go and generic.go.
//
// # Bits
//
// Results are the same on every machine. A product is rounded before it is added, by an
// explicit conversion in Go and by separate instructions in assembly, unless the product
// or the result of the FMA is exact. A sum runs in a fixed number of lanes: element i goes
// to lane i mod lanes; then the upper half of the lanes is added to the lower half until
// one is left. The order depends neither on the width of the vectors nor on where a slice
// begins.
//
// # Lengths and aliasing
//
// The slice that the doc comment names first gives the length; the others must be as
// long or longer. Slices need no alignment. A result may be the same slice as an operand
// where the comment says so. It must not overlap operands in any other way.
package simd

// wholeVectors returns how many of n elements the assembly processes, the twin the rest.
// The assembly works on sixteen at a time, whatever the width of its vectors.
func wholeVectors(n int) int {
	if !haveVectors {
		return 0
	}
	return n &^ 15
}

// fold adds up lanes, whose number is a power of two.
func fold[F float32 | float64](lanes []F) F {
	for half := len(lanes) / 2; half > 0; half /= 2 {
		for i, upper := range lanes[half : 2*half] {
			lanes[i] += upper
		}
	}
	return lanes[0]
}
