// Storage formats: rounding, random bits of stochastic rounding, and vector loads and
// stores of eight elements.
#pragma once
#include "octet.cuh"

// ---- random bits: fp8/random.go is the definition ----

const u32 GOLDEN32 = 0x9e3779b9u;
const u64 GOLDEN64 = 0x9e3779b97f4a7c15ull;

__device__ inline u64 mix64(u64 x) {
	x ^= x >> 33;
	x *= 0xff51afd7ed558ccdull;
	x ^= x >> 33;
	x *= 0xc4ceb9fe1a85ec53ull;
	x ^= x >> 33;
	return x;
}

__device__ inline u32 mix32(u32 x, u32 key) {
	u32 h = x ^ x >> 16 ^ key;
	h *= 0x7feb352du;
	h ^= h >> 15 ^ x;
	h *= 0x846ca68bu;
	return h ^ h >> 16;
}

__device__ inline u64 stream_key(const int *control, u64 name) {
	return mix64(mix64(mix64(control_seed(control) + GOLDEN64) ^ control_step(control)) ^ name);
}

// word_key returns the key for words whose index has this high half.
__device__ inline u64 word_key(u64 key, u32 high) { return high ? key + high * GOLDEN64 : key; }

// random_bits returns the 16 random bits of one element, in the high half.
__device__ inline u32 random_bits(u64 key, u64 index) {
	const u64 k = word_key(key, (u32)(index >> 33));
	const u32 word = mix32((u32)k + (u32)(index / 2) * GOLDEN32, (u32)(k >> 32));
	return index % 2 ? word & 0xffff0000u : word << 16;
}

// random8 returns the random bits of eight elements, index being a multiple of eight:
// four words of two elements each, the first in the low half. All words have the same
// high half of the index.
__device__ inline void random8(u64 key, u64 index, u32 words[4]) {
	const u64 k = word_key(key, (u32)(index >> 33));
	const u32 first = (u32)k + (u32)(index / 2) * GOLDEN32;
#pragma unroll
	for (u32 i = 0; i < 4; i++)
		words[i] = mix32(first + i * GOLDEN32, (u32)(k >> 32));
}

// ---- formats: fp8/dtype.go and fp8/round.go are the definition ----

// size_of returns the bytes of an element, 1 for E2M1, of which a byte holds two.
__device__ inline int size_of(int format) {
	return format == F32 || format == I32 ? 4 : format == BF16 || format == F16 ? 2 : 1;
}

// Facts of a format: bits of the stored significand; bits of the code without its sign;
// FP32 exponent field of the smallest normal value; code of the largest value.
template <int FORMAT> struct Facts;
template <> struct Facts<BF16> { enum { MANTISSA = 7, WIDTH = 15, SMALLEST = 1, TOP = 0x7f7f }; };
template <> struct Facts<F16> { enum { MANTISSA = 10, WIDTH = 15, SMALLEST = 113, TOP = 0x7bff }; };
template <> struct Facts<E4M3> { enum { MANTISSA = 3, WIDTH = 7, SMALLEST = 121, TOP = 0x7e }; };
template <> struct Facts<E4M3IEEE> { enum { MANTISSA = 3, WIDTH = 7, SMALLEST = 121, TOP = 0x77 }; };
template <> struct Facts<E5M2> { enum { MANTISSA = 2, WIDTH = 7, SMALLEST = 113, TOP = 0x7b }; };
template <> struct Facts<E2M1> { enum { MANTISSA = 1, WIDTH = 3, SMALLEST = 127, TOP = 7 }; };

// encode_bits rounds by integer arithmetic: to nearest even, or stochastically: up if the
// discarded fraction plus the random bits carries. BF16 overflows to infinity, other
// formats saturate; NaN is canonical, in E2M1, which has none, the largest value.
template <int FORMAT, bool RANDOM> __device__ inline u32 encode_bits(float x, u32 random) {
	typedef Facts<FORMAT> F;
	const u32 bits = __float_as_uint(x), a = bits & 0x7fffffffu;
	if (a > 0x7f800000u)
		return (1u << F::WIDTH) - 1;
	u32 exponent = a >> 23, significand = a & 0x7fffffu;
	if (exponent > 0)
		significand |= 0x800000u;
	else
		exponent = 1;
	// Below the smallest normal value the unit is that of the subnormals.
	const u32 unit = max(exponent, (u32)F::SMALLEST);
	const u32 shift = min(23 - F::MANTISSA + unit - exponent, 63u);
	const u64 fixed = ((u64)significand << 32) >> shift;
	u32 code = ((unit - F::SMALLEST) << F::MANTISSA) + (u32)(fixed >> 32);
	const u32 fraction = (u32)fixed;
	if (RANDOM)
		code += fraction + random < fraction; // the carry
	else
		code += fraction > 0x80000000u || (fraction == 0x80000000u && (code & 1));
	if (code > F::TOP)
		code = FORMAT == BF16 ? F::TOP + 1 : F::TOP;
	return code | bits >> 31 << F::WIDTH;
}

// reduced rounds to a format with the exponents of BF16 or fewer and at most as many bits
// (fp8.EncodeBF16As), to nearest even; overflow is infinity. precision holds, from the
// lowest byte, the bits of FP32's significand that are dropped, the FP32 exponent field of
// the smallest normal value, a byte that is 1 for a mask and, in the high half, the FP32 bits
// of the largest value. precision 0 changes nothing. A mask (fp8.ParseDType) truncates the
// nearest BF16 value and has neither subnormals nor overflow.
__device__ inline float reduced(float x, u64 precision) {
	const u32 drop = precision & 0xff, smallest = (u32)(precision >> 8 & 0xff) << 23, bits = __float_as_uint(x);
	u32 a = bits & 0x7fffffffu;
	if (!precision || a > 0x7f800000u)
		return x;
	if (precision >> 16 & 1) {
		a = (a + 0x7fff + (a >> 16 & 1)) >> drop << drop;
		if (a < 0x7f800000u)
			a = a < smallest ? 0 : min(a, (u32)(precision >> 32));
		return __uint_as_float(a | (bits & 0x80000000u));
	}
	if (a < smallest) {
		const float subnormal = __uint_as_float(smallest + (drop << 23)); // its unit is that of the subnormals
		a = __float_as_uint(__fsub_rn(__fadd_rn(__uint_as_float(a), subnormal), subnormal));
	} else {
		a = (a + ((1u << (drop - 1)) - 1) + (a >> drop & 1)) >> drop << drop;
	}
	if (a > (u32)(precision >> 32))
		a = 0x7f800000u;
	return __uint_as_float(a | (bits & 0x80000000u));
}

// rounded_up returns the code of a value that is not NaN, stochastically rounded like
// encode_bits by 16 random bits, in a seventh of the instructions. The code is at bit 30
// and below, for FP8 and F16 without the sign. A multiplication by a power of two maps
// the format's smallest normal value to FP32's, so that the bits to discard are the low
// bits of the significand, also for subnormals. It truncates below FP32's smallest
// subnormal; FP8 still has at least 16 bits to discard, so the random bits carry
// correctly. F16 has only 13: its subnormals need encode_bits.
template <int FORMAT> __device__ inline u32 rounded_up(float x, u32 word, int half) {
	typedef Facts<FORMAT> F;
	const u32 random = F::WIDTH == 7 ? __byte_perm(word, 0, half ? 0x4324 : 0x4104) : half ? word >> 16 : word & 0xffffu;
	if (FORMAT == BF16)
		return __float_as_uint(x) + random;
	const float a = __fmul_rz(fminf(fabsf(x), largest_of(FORMAT)), __uint_as_float((u32)(128 - F::SMALLEST) << 23));
	return (__float_as_uint(a) << (F::WIDTH == 7 ? 1 + F::MANTISSA : 16 + F::MANTISSA - 23)) + random;
}

// pair2 returns the codes of two values, the first in the low half: 32 bits, 16 for FP8.
// quad4 returns four FP8 codes. The instructions round like encode_bits (PTX ISA, cvt):
// to nearest even; .satfinite, required for e4m3x2 and e5m2x2, saturates; NaN is
// canonical.
template <int FORMAT> __device__ inline u32 pair2(float x, float y) {
	return encode_bits<FORMAT, false>(x, 0) | encode_bits<FORMAT, false>(y, 0) << (Facts<FORMAT>::WIDTH + 1);
}

template <int FORMAT> __device__ inline u32 quad4(const float v[4]) { return pair2<FORMAT>(v[0], v[1]) | pair2<FORMAT>(v[2], v[3]) << 16; }

#ifdef __CUDA_ARCH__
template <> __device__ inline u32 quad4<E4M3>(const float v[4]) {
	u32 r;
	asm("{ .reg .b16 x, y; cvt.rn.satfinite.e4m3x2.f32 x, %2, %1; cvt.rn.satfinite.e4m3x2.f32 y, %4, %3; mov.b32 %0, {x, y}; }"
	    : "=r"(r) : "f"(v[0]), "f"(v[1]), "f"(v[2]), "f"(v[3]));
	return r;
}

template <> __device__ inline u32 quad4<E5M2>(const float v[4]) {
	u32 r;
	asm("{ .reg .b16 x, y; cvt.rn.satfinite.e5m2x2.f32 x, %2, %1; cvt.rn.satfinite.e5m2x2.f32 y, %4, %3; mov.b32 %0, {x, y}; }"
	    : "=r"(r) : "f"(v[0]), "f"(v[1]), "f"(v[2]), "f"(v[3]));
	return r;
}

template <> __device__ inline u32 pair2<BF16>(float x, float y) {
	u32 r;
	asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(y), "f"(x));
	return r;
}

// cvt to F16 does not saturate, so x and y are clamped first; NaN stays.
template <> __device__ inline u32 pair2<F16>(float x, float y) {
	x = x > 65504.0f ? 65504.0f : x < -65504.0f ? -65504.0f : x;
	y = y > 65504.0f ? 65504.0f : y < -65504.0f ? -65504.0f : y;
	u32 r;
	asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(y), "f"(x));
	return r;
}
#endif

// encode8 packs the codes of eight values into words: two for FP8, four for 16-bit
// formats, eight for F32.
template <int FORMAT> __device__ inline void encode8(const float v[8], u32 words[8]) {
#pragma unroll
	for (int i = 0; i < 8; i += 4)
		if constexpr (Facts<FORMAT>::WIDTH == 7)
			words[i / 4] = quad4<FORMAT>(v + i);
		else
			words[i / 2] = pair2<FORMAT>(v[i], v[i + 1]), words[i / 2 + 1] = pair2<FORMAT>(v[i + 2], v[i + 3]);
}

__device__ inline bool unordered(float x, float y) { return !(x <= y || x > y); }

// Stochastic rounding sets the signs in pairs; NaN and F16 subnormals, which are rare,
// are encoded again.
template <int FORMAT> __device__ inline void encode8(const float v[8], const u32 random[4], u32 words[8]) {
	const int width = Facts<FORMAT>::WIDTH + 1, each = 32 / width;
	bool rare = false;
	u32 pairs[4], smallest = 0xffffffffu;
#pragma unroll
	for (int i = 0; i < 4; i++) {
		const float x = v[2 * i], y = v[2 * i + 1];
		const u32 a = rounded_up<FORMAT>(x, random[i], 0), b = rounded_up<FORMAT>(y, random[i], 1);
		pairs[i] = __byte_perm(a, b, 0x7632);
		if (FORMAT != BF16)
			pairs[i] |= __byte_perm(__float_as_uint(x), __float_as_uint(y), 0x7632) & 0x80008000u;
		rare |= unordered(x, y);
		smallest = min(min(smallest, a), b);
	}
	if (FORMAT == F16)
		rare |= smallest < 0x4000000u; // the code of the smallest normal value, 16 bits up
#pragma unroll
	for (int i = 0; i < 8 / each; i++)
		words[i] = each == 2 ? pairs[i] : __byte_perm(pairs[2 * i % 4], pairs[(2 * i + 1) % 4], 0x7531);
	if (rare)
#pragma unroll
		for (int i = 0; i < 8; i++) {
			const u32 mask = 0xffffffffu >> (32 - width) << (i % each * width);
			u32 &w = words[i / each];
			w = (w & ~mask) | encode_bits<FORMAT, true>(v[i], i % 2 ? random[i / 2] & 0xffff0000u : random[i / 2] << 16) << (i % each * width);
		}
}

__device__ inline void encode8(int format, const float v[8], bool stochastic, const u32 random[4], u32 words[8]) {
	switch (format) {
	case F32:
#pragma unroll
		for (int i = 0; i < 8; i++)
			words[i] = __float_as_uint(v[i]);
		return;
	case BF16: return stochastic ? encode8<BF16>(v, random, words) : encode8<BF16>(v, words);
	case F16: return stochastic ? encode8<F16>(v, random, words) : encode8<F16>(v, words);
	case E4M3: return stochastic ? encode8<E4M3>(v, random, words) : encode8<E4M3>(v, words);
	case E4M3IEEE: return stochastic ? encode8<E4M3IEEE>(v, random, words) : encode8<E4M3IEEE>(v, words);
	default: return stochastic ? encode8<E5M2>(v, random, words) : encode8<E5M2>(v, words);
	}
}

// encode1 returns the code of one value.
template <int FORMAT> __device__ inline u32 encode1(float x, bool stochastic, u32 random) {
	return stochastic ? encode_bits<FORMAT, true>(x, random) : encode_bits<FORMAT, false>(x, 0);
}

__device__ inline u32 encode1(int format, float x, bool stochastic, u32 random) {
	switch (format) {
	case F32: return __float_as_uint(x);
	case BF16: return encode1<BF16>(x, stochastic, random);
	case F16: return encode1<F16>(x, stochastic, random);
	case E4M3: return encode1<E4M3>(x, stochastic, random);
	case E4M3IEEE: return encode1<E4M3IEEE>(x, stochastic, random);
	case E2M1: return encode1<E2M1>(x, stochastic, random);
	default: return encode1<E5M2>(x, stochastic, random);
	}
}

// store1 stores a code as element at of an array.
__device__ inline void store1(void *p, i64 at, i64 format, u32 code) {
	switch (size_of(format)) {
	case 4: ((u32 *)p)[at] = code; break;
	case 2: ((u16 *)p)[at] = (u16)code; break;
	default: ((u8 *)p)[at] = (u8)code;
	}
}

// widen returns the value of a code: it places the code's bits in FP32 and rescales by a
// power of two, which is exact, also for subnormals. Codes above the largest value are
// infinity or NaN.
template <int FORMAT> __device__ inline float widen(u32 code) {
	typedef Facts<FORMAT> F;
	const u32 sign = code >> F::WIDTH << 31, a = code & ((1u << F::WIDTH) - 1);
	if (a > F::TOP)
		return __uint_as_float(sign | 0x7f800000u | (a & ((1u << F::MANTISSA) - 1)) << (23 - F::MANTISSA));
	// 2^(SMALLEST-1): exponent field 1 of the code corresponds to SMALLEST in FP32.
	const float move = __uint_as_float((u32)(126 + F::SMALLEST) << 23);
	return __uint_as_float(sign | __float_as_uint(__uint_as_float(a << (23 - F::MANTISSA)) * move));
}

__device__ inline float decode1(i64 format, u32 code) {
	switch (format) {
	case F32: return __uint_as_float(code);
	case BF16: return __uint_as_float(code << 16);
	case F16: return widen<F16>(code);
	case E4M3: return widen<E4M3>(code);
	case E4M3IEEE: return widen<E4M3IEEE>(code);
	default: return widen<E5M2>(code);
	}
}

__device__ inline u32 load1(const void *p, i64 at, i64 format) {
	switch (size_of(format)) {
	case 4: return ((const u32 *)p)[at];
	case 2: return ((const u16 *)p)[at];
	default: return ((const u8 *)p)[at];
	}
}

__device__ inline float load_value(const Tensor &t, i64 row, i64 col) {
	const float x = decode1(t.format, load1(t.p, row * t.ld + col, t.format));
	return t.scale ? x * *t.scale : x;
}

// ---- vectors of 16 bytes ----

__device__ inline bool aligned(const void *p, int bytes) { return ((u64)p & (u64)(bytes - 1)) == 0; }

// Eight holds the stored bits of eight elements. A kernel with several operands fetches
// all before it decodes any, so that it waits for memory once.
struct Eight {
	u32 w[8];
};

// offset returns the index of an element. Rows and columns are below 2^31, so one 32-bit
// multiplication suffices.
__device__ inline i64 offset(i64 row, i64 ld, i64 col) { return (i64)((u64)(u32)row * (u32)ld) + col; }

// in_vectors reports whether eight elements, from any multiple of eight, can be loaded
// and stored as vectors in every row.
__device__ inline bool in_vectors(const void *p, i64 ld, int size) { return (((u32)(u64)p | (u32)ld * size) & (u32)(min(8 * size, 16) - 1)) == 0; }

// vector8 loads eight elements. READ_ONLY uses the read-only path, for memory that the
// kernel does not write.
template <bool READ_ONLY> __device__ inline Eight vector8(const void *p, int size) {
	Eight e;
	if (size == 1) {
		const uint2 x = *(const uint2 *)p;
		e.w[0] = x.x, e.w[1] = x.y;
		return e;
	}
	const uint4 x = READ_ONLY ? __ldg((const uint4 *)p) : *(const uint4 *)p;
	e.w[0] = x.x, e.w[1] = x.y, e.w[2] = x.z, e.w[3] = x.w;
	if (size == 4) {
		const uint4 y = READ_ONLY ? __ldg((const uint4 *)p + 1) : *((const uint4 *)p + 1);
		e.w[4] = y.x, e.w[5] = y.y, e.w[6] = y.z, e.w[7] = y.w;
	}
	return e;
}

// fetch8 loads the first n of eight elements of size bytes, from element at of an array,
// and zeros for the rest.
template <bool READ_ONLY> __device__ inline Eight fetch8(const void *array, i64 at, int size, int n) {
	const u8 *p = (const u8 *)array + at * size;
	if (n == 8 && aligned(p, min(8 * size, 16)))
		return vector8<READ_ONLY>(p, size);
	Eight e = {};
#pragma unroll
	for (int i = 0; i < 8; i++)
		if (i < n) {
			if (size == 4)
				e.w[i] = ((const u32 *)p)[i];
			else if (size == 2)
				e.w[i / 2] |= (u32)((const u16 *)p)[i] << (i % 2 * 16);
			else
				e.w[i / 4] |= (u32)p[i] << (i % 4 * 8);
		}
	return e;
}

// fetch8 of a tensor loads elements of a row of F32, BF16 or F16, from col.
__device__ inline Eight fetch8(const Tensor &t, i64 row, i64 col, int n) {
	return fetch8<true>(t.p, offset(row, t.ld, col), t.format == F32 ? 4 : 2, n);
}

// decode2 returns the values of two codes, the first in the low half: of 32 bits, of 16
// for FP8.
template <int FORMAT> __device__ inline void decode2(u32 pair, float v[2]) {
	const u32 mask = (2u << Facts<FORMAT>::WIDTH) - 1;
	v[0] = widen<FORMAT>(pair & mask), v[1] = widen<FORMAT>(pair >> (Facts<FORMAT>::WIDTH + 1) & mask);
}

template <> __device__ inline void decode2<BF16>(u32 pair, float v[2]) {
	v[0] = __uint_as_float(pair << 16), v[1] = __uint_as_float(pair & 0xffff0000u);
}

#ifdef __CUDA_ARCH__
// Exact, like widen; NaN stays NaN.
template <> __device__ inline void decode2<F16>(u32 pair, float v[2]) {
	asm("{ .reg .b16 x, y; mov.b32 {x, y}, %2; cvt.f32.f16 %0, x; cvt.f32.f16 %1, y; }" : "=f"(v[0]), "=f"(v[1]) : "r"(pair));
}

template <> __device__ inline void decode2<E4M3>(u32 pair, float v[2]) {
	u32 halves;
	asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(halves) : "h"((u16)pair));
	decode2<F16>(halves, v);
}

template <> __device__ inline void decode2<E5M2>(u32 pair, float v[2]) {
	u32 halves;
	asm("cvt.rn.f16x2.e5m2x2 %0, %1;" : "=r"(halves) : "h"((u16)pair));
	decode2<F16>(halves, v);
}
#endif

template <int FORMAT> __device__ inline void decode8(const Eight &e, float v[8]) {
#pragma unroll
	for (int i = 0; i < 8; i += 2)
		decode2<FORMAT>(Facts<FORMAT>::WIDTH == 15 ? e.w[i / 2] : e.w[i / 4] >> (i % 4 * 8), v + i);
}

template <> __device__ inline void decode8<F32>(const Eight &e, float v[8]) {
#pragma unroll
	for (int i = 0; i < 8; i++)
		v[i] = __uint_as_float(e.w[i]);
}

__device__ inline void decode8(int format, const Eight &e, float v[8]) {
	switch (format) {
	case F32: return decode8<F32>(e, v);
	case BF16: return decode8<BF16>(e, v);
	case F16: return decode8<F16>(e, v);
	case E4M3: return decode8<E4M3>(e, v);
	case E4M3IEEE: return decode8<E4M3IEEE>(e, v);
	default: return decode8<E5M2>(e, v);
	}
}

// values8 dequantizes what fetch8 loaded from t.
__device__ inline void values8(const Tensor &t, const Eight &e, float v[8]) {
	const int format = (int)t.format;
	if (format == F32)
		decode8<F32>(e, v);
	else if (format == BF16)
		decode8<BF16>(e, v);
	else
		decode8<F16>(e, v);
	if (t.scale) {
		const float f = __ldg(t.scale);
#pragma unroll
		for (int i = 0; i < 8; i++)
			v[i] *= f;
	}
}

// load8 is fetch8 and values8.
__device__ inline void load8(const Tensor &t, i64 row, i64 col, int n, float v[8]) { values8(t, fetch8(t, row, col, n), v); }

// store_vector stores bytes (8, 16 or 32) of words.
__device__ inline void store_vector(void *p, const u32 *w, int bytes) {
	if (bytes == 8) {
		*(uint2 *)p = make_uint2(w[0], w[1]);
		return;
	}
	*(uint4 *)p = make_uint4(w[0], w[1], w[2], w[3]);
	if (bytes == 32)
		*((uint4 *)p + 1) = make_uint4(w[4], w[5], w[6], w[7]);
}

// store8 stores the first n of eight codes of size bytes, from element at of an array.
__device__ inline void store8(void *p, i64 at, int size, int n, const u32 words[8]) {
	u8 *to = (u8 *)p + at * size;
	if (n == 8 && aligned(to, min(8 * size, 16)))
		return store_vector(to, words, 8 * size);
#pragma unroll
	for (int i = 0; i < 8; i++) {
		if (i >= n)
			break;
		if (size == 4)
			((u32 *)to)[i] = words[i];
		else if (size == 2)
			((u16 *)to)[i] = (u16)(words[i / 2] >> (i % 2 * 16));
		else
			to[i] = (u8)(words[i / 4] >> (i % 4 * 8));
	}
}
