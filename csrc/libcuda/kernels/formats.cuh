// How numbers are stored: the formats with their roundings, the random bits of a
// stochastic one, and rows of memory eight elements at a time.
#pragma once
#include "octet.cuh"

// ---- random bits: fp8/random.go is the definition ----

__device__ inline u64 mix64(u64 x) {
	x ^= x >> 33;
	x *= 0xff51afd7ed558ccdull;
	x ^= x >> 33;
	x *= 0xc4ceb9fe1a85ec53ull;
	x ^= x >> 33;
	return x;
}

__device__ inline u32 mix32(u32 x) {
	x ^= x >> 16;
	x *= 0x21f0aaadu;
	x ^= x >> 15;
	x *= 0xd35a2d97u;
	x ^= x >> 15;
	return x;
}

__device__ inline u64 stream_key(const int *control, u64 name) {
	return mix64(mix64(mix64(control_seed(control) + 0x9e3779b97f4a7c15ull) ^ control_step(control)) ^ name);
}

__device__ inline u32 random_word(u64 key, u64 number) {
	const u32 second = (u32)(key >> 32) + (u32)(number >> 32) * 0x9e3779b9u;
	return mix32(mix32((u32)number ^ (u32)key) ^ second);
}

// random_bits are the sixteen of one element, above sixteen zeros.
__device__ inline u32 random_bits(u64 key, u64 index) {
	const u32 word = random_word(key, index / 2);
	return index % 2 ? word & 0xffff0000u : word << 16;
}

// random_pair is the bits of an element and the next one, which share a word if
// the first is even.
__device__ inline uint2 random_pair(u64 key, u64 index) {
	if (index % 2)
		return make_uint2(random_bits(key, index), random_bits(key, index + 1));
	const u32 word = random_word(key, index / 2);
	return make_uint2(word << 16, word & 0xffff0000u);
}

// ---- formats: fp8/dtype.go and fp8/round.go are the definition ----

// size_of is the number of bytes of an element.
__device__ inline int size_of(i64 format) {
	return format == F32 || format == I32 ? 4 : format == BF16 || format == F16 ? 2 : 1;
}

// The facts about a small format: bits of the stored significand, those of the
// code without its sign, exponent field of FP32 for the smallest normal number,
// code of the largest number.
template <int FORMAT> struct Facts;
template <> struct Facts<BF16> { enum { MANTISSA = 7, WIDTH = 15, SMALLEST = 1, TOP = 0x7f7f }; };
template <> struct Facts<F16> { enum { MANTISSA = 10, WIDTH = 15, SMALLEST = 113, TOP = 0x7bff }; };
template <> struct Facts<E4M3> { enum { MANTISSA = 3, WIDTH = 7, SMALLEST = 121, TOP = 0x7e }; };
template <> struct Facts<E4M3IEEE> { enum { MANTISSA = 3, WIDTH = 7, SMALLEST = 121, TOP = 0x77 }; };
template <> struct Facts<E5M2> { enum { MANTISSA = 2, WIDTH = 7, SMALLEST = 113, TOP = 0x7b }; };

// encode_bits rounds by integer arithmetic alone: to nearest, ties to even, or
// up where the discarded fraction and the random bits carry. BF16 overflows to
// infinity, the others saturate; NaN is the canonical one.
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
	// Below the smallest normal number the unit stays that of the subnormals.
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

// pair2 are the codes of two numbers, the first in the low half: of the word, or
// for FP8 of sixteen bits. The instructions round like encode_bits: PTX ISA,
// cvt: to nearest even, .satfinite (which e4m3x2 and e5m2x2 demand) makes
// overflow the largest number, and NaN becomes the canonical one.
template <int FORMAT> __device__ inline u32 pair2(float x, float y) {
	return encode_bits<FORMAT, false>(x, 0) | encode_bits<FORMAT, false>(y, 0) << (Facts<FORMAT>::WIDTH + 1);
}

#ifdef __CUDA_ARCH__
template <> __device__ inline u32 pair2<E4M3>(float x, float y) {
	u16 r;
	asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(r) : "f"(y), "f"(x));
	return r;
}

template <> __device__ inline u32 pair2<E5M2>(float x, float y) {
	u16 r;
	asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(r) : "f"(y), "f"(x));
	return r;
}

template <> __device__ inline u32 pair2<BF16>(float x, float y) {
	u32 r;
	asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(y), "f"(x));
	return r;
}

// To F16 there is no saturation; what is larger is cut off first, NaN stays.
template <> __device__ inline u32 pair2<F16>(float x, float y) {
	x = x > 65504.0f ? 65504.0f : x < -65504.0f ? -65504.0f : x;
	y = y > 65504.0f ? 65504.0f : y < -65504.0f ? -65504.0f : y;
	u32 r;
	asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(y), "f"(x));
	return r;
}
#endif

// encode8 packs the codes of eight numbers into words: two of FP8, four of the
// formats of sixteen bits, eight of F32.
template <int FORMAT> __device__ inline void encode8(const float v[8], bool stochastic, u64 key, u64 index, u32 words[8]) {
	if (stochastic) {
		const int width = Facts<FORMAT>::WIDTH + 1, each = 32 / width;
#pragma unroll
		for (int i = 0; i < 8; i += 2) {
			const uint2 random = random_pair(key, index + i);
			const u32 pair = encode_bits<FORMAT, true>(v[i], random.x) | encode_bits<FORMAT, true>(v[i + 1], random.y) << width;
			words[i / each] = i % each ? words[i / each] | pair << (i % each * width) : pair;
		}
		return;
	}
	if constexpr (Facts<FORMAT>::WIDTH == 15) {
#pragma unroll
		for (int i = 0; i < 4; i++)
			words[i] = pair2<FORMAT>(v[2 * i], v[2 * i + 1]);
	} else {
#pragma unroll
		for (int i = 0; i < 2; i++)
			words[i] = pair2<FORMAT>(v[4 * i], v[4 * i + 1]) | pair2<FORMAT>(v[4 * i + 2], v[4 * i + 3]) << 16;
	}
}

__device__ inline void encode8(i64 format, const float v[8], bool stochastic, u64 key, u64 index, u32 words[8]) {
	switch (format) {
	case F32:
#pragma unroll
		for (int i = 0; i < 8; i++)
			words[i] = __float_as_uint(v[i]);
		return;
	case BF16: return encode8<BF16>(v, stochastic, key, index, words);
	case F16: return encode8<F16>(v, stochastic, key, index, words);
	case E4M3: return encode8<E4M3>(v, stochastic, key, index, words);
	case E4M3IEEE: return encode8<E4M3IEEE>(v, stochastic, key, index, words);
	default: return encode8<E5M2>(v, stochastic, key, index, words);
	}
}

// encode1 is the code of one number.
template <int FORMAT> __device__ inline u32 encode1(float x, bool stochastic, u32 random) {
	return stochastic ? encode_bits<FORMAT, true>(x, random) : encode_bits<FORMAT, false>(x, 0);
}

__device__ inline u32 encode1(i64 format, float x, bool stochastic, u32 random) {
	switch (format) {
	case F32: return __float_as_uint(x);
	case BF16: return encode1<BF16>(x, stochastic, random);
	case F16: return encode1<F16>(x, stochastic, random);
	case E4M3: return encode1<E4M3>(x, stochastic, random);
	case E4M3IEEE: return encode1<E4M3IEEE>(x, stochastic, random);
	default: return encode1<E5M2>(x, stochastic, random);
	}
}

// store1 writes a code as element at of an array.
__device__ inline void store1(void *p, i64 at, i64 format, u32 code) {
	switch (size_of(format)) {
	case 4: ((u32 *)p)[at] = code; break;
	case 2: ((u16 *)p)[at] = (u16)code; break;
	default: ((u8 *)p)[at] = (u8)code;
	}
}

// widen reads a code of a small format as if FP32 had its exponent's range, and
// moves it there by a power of two: exact for subnormals, too. What lies above
// the largest number is infinity or NaN.
template <int FORMAT> __device__ inline float widen(u32 code) {
	typedef Facts<FORMAT> F;
	const u32 sign = code >> F::WIDTH << 31, a = code & ((1u << F::WIDTH) - 1);
	if (a > F::TOP)
		return __uint_as_float(sign | 0x7f800000u | (a & ((1u << F::MANTISSA) - 1)) << (23 - F::MANTISSA));
	// 2^(SMALLEST-1): the code's exponent field 1 means FP32's SMALLEST.
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

// Eight is eight elements as they lie in memory. A kernel that needs several
// operands fetches them all before it asks what any of them means: so it waits for
// memory once, and not for each of them.
struct Eight {
	u32 w[8];
};

// fetch8 reads the first n of eight elements of size bytes, zeros behind them, from
// element at of an array on. READ_ONLY is the path for memory that the kernel does
// not write to.
template <bool READ_ONLY> __device__ inline Eight fetch8(const void *array, i64 at, int size, int n) {
	const u8 *p = (const u8 *)array + at * size;
	Eight e = {};
	if (n == 8 && aligned(p, min(8 * size, 16))) {
		if (size == 1) {
			const uint2 x = *(const uint2 *)p;
			e.w[0] = x.x, e.w[1] = x.y;
		} else {
			const uint4 x = READ_ONLY ? __ldg((const uint4 *)p) : *(const uint4 *)p;
			e.w[0] = x.x, e.w[1] = x.y, e.w[2] = x.z, e.w[3] = x.w;
			if (size == 4) {
				const uint4 y = READ_ONLY ? __ldg((const uint4 *)p + 1) : *((const uint4 *)p + 1);
				e.w[4] = y.x, e.w[5] = y.y, e.w[6] = y.z, e.w[7] = y.w;
			}
		}
		return e;
	}
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

// fetch8 of a tensor reads elements of a row of F32, BF16 or F16 from col on.
__device__ inline Eight fetch8(const Tensor &t, i64 row, i64 col, int n) {
	return fetch8<true>(t.p, row * t.ld + col, t.format == F32 ? 4 : 2, n);
}

// values8 is what was fetched of t, dequantised.
__device__ inline void values8(const Tensor &t, const Eight &e, float v[8]) {
	if (t.format == F32) {
#pragma unroll
		for (int i = 0; i < 8; i++)
			v[i] = __uint_as_float(e.w[i]);
	} else if (t.format == BF16) {
#pragma unroll
		for (int i = 0; i < 4; i++) {
			v[2 * i] = __uint_as_float(e.w[i] << 16);
			v[2 * i + 1] = __uint_as_float(e.w[i] & 0xffff0000u);
		}
	} else {
#pragma unroll
		for (int i = 0; i < 4; i++) {
			v[2 * i] = widen<F16>(e.w[i] & 0xffffu);
			v[2 * i + 1] = widen<F16>(e.w[i] >> 16);
		}
	}
	if (t.scale) {
		const float f = *t.scale;
#pragma unroll
		for (int i = 0; i < 8; i++)
			v[i] *= f;
	}
}

// load8 is both, where there is nothing else to fetch.
__device__ inline void load8(const Tensor &t, i64 row, i64 col, int n, float v[8]) { values8(t, fetch8(t, row, col, n), v); }

// store_words writes bytes (8, 16 or 32) of words, if the address allows.
__device__ inline bool store_words(void *p, const u32 *w, int bytes) {
	if (!aligned(p, min(bytes, 16)))
		return false;
	if (bytes == 8) {
		*(uint2 *)p = make_uint2(w[0], w[1]);
	} else {
		*(uint4 *)p = make_uint4(w[0], w[1], w[2], w[3]);
		if (bytes == 32)
			*((uint4 *)p + 1) = make_uint4(w[4], w[5], w[6], w[7]);
	}
	return true;
}

// store8 writes the first n of eight codes of size bytes to an array, from
// element at on.
__device__ inline void store8(void *p, i64 at, int size, int n, const u32 words[8]) {
	u8 *to = (u8 *)p + at * size;
	if (n == 8 && store_words(to, words, 8 * size))
		return;
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
