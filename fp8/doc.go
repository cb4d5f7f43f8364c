// Package fp8 is the arithmetic of eight-bit floating point: what the codes
// mean, how a float32 is rounded to one, and how scales are chosen.
//
// Eight bits hold a sign, an exponent and very little of a significand:
//
//	format    e  m  largest  smallest normal  subnormal  relative step  infinity
//	E4M3      4  3      448  2^-6             2^-9       1/8            no
//	E4M3IEEE  4  3      240  2^-6             2^-9       1/8            yes
//	E5M2      5  2    57344  2^-14            2^-16      1/4            yes
//	F16       5 10    65504  2^-14            2^-24      1/1024         yes
//	BF16      8  7   3.4e38  2^-126           2^-133     1/128          yes
//
// Training multiplies matrices of such numbers and sums the products in a
// wider type. Weights and activations have similar magnitudes and want
// precision: E4M3 (E4M3IEEE on Gaudi2). Gradients spread over more powers of
// two and want range: E5M2.
//
// Range is still the problem. A gradient of 1e-7 is zero in E5M2, and 500
// does not fit E4M3. So every tensor has a scale, which multiplies before the
// cast; its inverse, which dequantises, stays with the codes. ScaleFor makes
// the largest magnitude, the amax, just fit. If the scale is a power of two,
// scaling itself rounds nothing. An amax is always taken before the cast:
// after it, everything too large looks like the maximum, and neither growth
// nor an infinity would be seen. MXScale does the same for small blocks (MX),
// whose scale is a code of its own, E8M0.
//
// Rounding to nearest has the smallest error, but a steady one: an update
// smaller than half a step is lost, every time. Stochastic rounding goes up
// with a probability equal to the fraction it would discard, to sixteen bits, so
// its mean is right to 2^-16 of a step (see Random). Its random bits are a function of seed, step, tensor
// name and element (NameKey, StreamKey, Random), hence the same on any device, in
// any order of work.
//
// Casts of slices saturate. The methods of DType (Nearest, Stochastic,
// Float32) are their specification, one number at a time. Where the processor
// has vectors they are in assembly, with the bits of the plain Go; a slice with
// a NaN, or a scale that is not positive and finite (at random: or above 2^111),
// takes the plain Go's time.
//
//	key := fp8.StreamKey(seed, step, fp8.NameKey("layers.3.mlp.output_grad"))
//	scale, ok := fp8.ScaleFor(fp8.Amax(x), fp8.E5M2.Max(), true)
//	amax := fp8.Quantize8Stochastic(codes, x, fp8.E5M2, scale, key, 0, false)
//	fp8.Dequantize8(y, codes, fp8.E5M2, 1/scale)
package fp8
