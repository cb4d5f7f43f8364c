// Package fp8 defines the eight-bit floating-point formats, casts float32 to them
// and back, and chooses scales. It also casts to F16 and BF16.
//
// An FP8 value has a sign, four or five exponent bits (e) and two or three
// mantissa bits (m):
//
//	format    e  m  maximum  min normal  min subnormal  spacing  infinity
//	E4M3      4  3      448  2^-6        2^-9           1/8      no
//	E4M3IEEE  4  3      240  2^-6        2^-9           1/8      yes
//	E5M2      5  2    57344  2^-14       2^-16          1/4      yes
//	F16       5 10    65504  2^-14       2^-24          1/1024   yes
//	BF16      8  7   3.4e38  2^-126      2^-133         1/128    yes
//
// Spacing is the distance between neighboring values in a binade [2^k, 2^(k+1)),
// relative to 2^k.
//
// FP8 training multiplies matrices of FP8 values and accumulates in a wider type.
// Weights and activations need precision and use E4M3 (E4M3IEEE on Gaudi2).
// Gradients spread over more powers of two, need range and use E5M2.
//
// # Scales
//
// Unscaled values leave the range of these formats: a gradient of 1e-7 underflows
// to zero in E5M2, and 500 exceeds the maximum of E4M3. Each tensor, or each row or
// block of one, therefore has a scale, which multiplies before the cast. The inverse,
// scale_inv, is stored with the codes and dequantizes them.
//
// ScaleFor returns the scale that maps the largest magnitude, the amax, to the
// maximum of the format. A scale that is a power of two adds no rounding error of its
// own. Octet takes the amax before the cast; after it, all large
// values are the maximum, and growth and infinities are invisible. MXScale chooses the
// scale of one small block (MX), a power of two stored as an E8M0 code.
//
// # Rounding
//
// Rounding to nearest has the smallest error, but a systematic one: an update below
// half a spacing is lost at every step. Stochastic rounding rounds away from zero
// with a probability equal to the discarded fraction, truncated to 16 bits, so the mean
// is off by at most 2^-16 of a spacing. The random bits are a function of
// seed, step, tensor name and element index (NameKey, StreamKey, Random), so every
// device draws the same bits in any order of execution.
//
// # Casts
//
// The methods Nearest, Stochastic and Float32 of DType cast one value; they specify
// every cast in Octet. The functions on slices return the same bits, faster. They
// saturate, except for casts to BF16, which overflow to infinity. They do not run in
// parallel: callers split the work.
//
// On amd64 and arm64 these functions use vector assembly. Some inputs can take the
// slower plain Go: slices with a NaN, scales that are zero, negative
// or not finite, and in stochastic rounding scales above 2^111.
//
// This code quantizes a gradient x and dequantizes it to y:
//
//	key := fp8.StreamKey(seed, step, fp8.NameKey("layers.3.mlp.output_grad"))
//	scale, ok := fp8.ScaleFor(fp8.Amax(x), fp8.E5M2.Max(), true) // !ok: amax is 0, NaN or infinite
//	amax := fp8.Quantize8Stochastic(codes, x, fp8.E5M2, scale, key, 0, false)
//	fp8.Dequantize8(y, codes, fp8.E5M2, 1/scale)
package fp8
