//go:build ignore

// Stand-in for libSynapse.so: number formats. On Gaudi2 E4M3 has a maximum of 240 and
// infinities, as IEEE formats do; on Gaudi3 its maximum is 448, without infinities. E5M2 is
// the same on both.

#define _GNU_SOURCE
#include "libsynapse.h"

#pragma GCC optimize("O3")

#include <math.h>
#include <string.h>

uint64_t type_size(uint32_t type) {
	switch (type) {
	case I8:
	case E4M3:
	case E5M2: return 1;
	case BF16:
	case F16: return 2;
	case F32:
	case I32:
	case U32: return 4;
	}
	return 0;
}

uint64_t elements(const operand *o) {
	uint64_t n = 1;
	for (uint32_t d = 0; d < o->dims; d++)
		n *= o->sizes[d];
	return n;
}

uint64_t bytes_of(const operand *o) { return elements(o) * type_size(o->type); }

bool same_sizes(const operand *a, const operand *b) {
	return a->dims == b->dims && !memcmp(a->sizes, b->sizes, a->dims * sizeof *a->sizes);
}

// A float format: fraction bits, exponent bias, and the codes of its maximum, of an
// overflow and of NaN.
typedef struct {
	int fraction, bias;
	uint32_t max_code, overflow, nan;
} format;

static const format bf16 = {7, 127, 0x7f7f, 0x7f80, 0x7fff}, f16 = {10, 15, 0x7bff, 0x7c00, 0x7fff};
static const format e4m3_gaudi2 = {3, 7, 0x77, 0x78, 0x7f}, e4m3_gaudi3 = {3, 7, 0x7e, 0x7f, 0x7f}, e5m2 = {2, 15, 0x7b, 0x7c, 0x7f};

static inline uint16_t bf16_nearest(float x) {
	const uint32_t bits = bits_of(x);
	return (bits & 0x7fffffff) > 0x7f800000 ? 0x7fff : (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}

// Each lane of the device's vectors has a 32-bit Galois LFSR, which is never 0 and shifts by
// one bit per draw: consecutive draws of a lane are correlated, those of neighbouring
// elements, which have other lanes, are not.
static inline uint32_t next_random(uint32_t *lanes, uint64_t element) {
	uint32_t *lane = &lanes[element % RANDOM_LANES];
	*lane = *lane >> 1 ^ (-(*lane & 1) & 0xa3000000u);
	return *lane;
}

// round_stochastic rounds x to a format: a magnitude rounds up if the discarded bits,
// left-aligned in 32, are at least the LFSR's (numerics of Intel's published reference).
// Exact values do not change.
static inline uint32_t round_stochastic(format f, uint32_t sign_bit, float x, bool saturate, uint32_t *lanes, uint64_t element) {
	const uint32_t bits = bits_of(x), a = bits & 0x7fffffff;
	const uint32_t sign = bits >> 31 << sign_bit;
	if (a > 0x7f800000)
		return f.nan;
	if (a == 0x7f800000)
		return sign | (saturate ? f.max_code : f.overflow);
	const int field = a >> 23;
	const int exponent = field ? field - 127 : -126;
	const uint32_t significand = field ? (a & 0x7fffff) | 0x800000 : a;
	const int min_exponent = 1 - f.bias; // of normal values
	const int discarded = 23 - f.fraction + (exponent < min_exponent ? min_exponent - exponent : 0);
	uint32_t code = discarded < 32 ? significand >> discarded : 0;
	const uint64_t rest = discarded < 32 ? significand & ((1ull << discarded) - 1) : significand;
	if (rest)
		code += (discarded <= 32 ? rest << (32 - discarded) : discarded < 64 ? rest >> (discarded - 32) : 0) >= next_random(lanes, element);
	if (exponent >= min_exponent)
		code += (uint32_t)(exponent + f.bias - 1) << f.fraction;
	if (code > f.max_code)
		code = saturate ? f.max_code : f.overflow;
	return sign | code;
}

// round_to_nearest rounds to nearest even without branches, for formats with fewer exponents
// than F32. For subnormals it adds `units`, a float whose last bit is the spacing of the
// format's subnormals.
static inline uint32_t round_to_nearest(format f, uint32_t sign_bit, float x, bool saturate) {
	const uint32_t bits = bits_of(x), a = bits & 0x7fffffff, discarded = 23 - f.fraction;
	const uint32_t min_normal = (uint32_t)(128 - f.bias) << 23;
	const uint32_t normal = ((a + (1u << (discarded - 1)) - 1 + (a >> discarded & 1)) >> discarded) - ((uint32_t)(127 - f.bias) << f.fraction);
	const uint32_t units = (uint32_t)(128 - f.bias + discarded) << 23;
	const uint32_t subnormal = bits_of(float_of(a < min_normal ? a : 0) + float_of(units)) - units;
	const uint32_t rounded = a < min_normal ? subnormal : normal, limit = saturate ? f.max_code : f.overflow;
	const uint32_t code = bits >> 31 << sign_bit | (rounded > f.max_code ? limit : rounded);
	return a > 0x7f800000 ? f.nan : code;
}

// ENCODE encodes in a constant format, so that the compiler can specialize it.
#define ENCODE(to, format, sign_bit)                                                          \
	if (round == TO_NEAREST)                                                              \
		for (uint64_t i = 0; i < n; i++)                                              \
			(to)[i] = round_to_nearest(format, sign_bit, from[i], saturate);      \
	else                                                                                  \
		for (uint64_t i = 0; i < n; i++)                                              \
			(to)[i] = round_stochastic(format, sign_bit, from[i], saturate, lanes, at + i);

WIDE static void encode_bytes(uint8_t *restrict to, uint32_t type, bool gaudi3, const float *restrict from, uint64_t n, int round, bool saturate, uint32_t *lanes, uint64_t at) {
	if (type == E5M2) {
		ENCODE(to, e5m2, 7)
	} else if (gaudi3) {
		ENCODE(to, e4m3_gaudi3, 7)
	} else {
		ENCODE(to, e4m3_gaudi2, 7)
	}
}

WIDE static void encode_words(uint16_t *restrict to, uint32_t type, const float *restrict from, uint64_t n, int round, bool saturate, uint32_t *lanes, uint64_t at) {
	if (type == F16) {
		ENCODE(to, f16, 15)
	} else if (round == TO_NEAREST) {
		for (uint64_t i = 0; i < n; i++)
			to[i] = bf16_nearest(from[i]);
	} else {
		for (uint64_t i = 0; i < n; i++)
			to[i] = round_stochastic(bf16, 15, from[i], saturate, lanes, at + i);
	}
}

void encode(const operand *o, uint64_t at, const float *from, uint64_t n, bool gaudi3, int round, bool saturate, uint32_t *lanes) {
	if (type_size(o->type) == 1)
		encode_bytes((uint8_t *)o->data + at, o->type, gaudi3, from, n, round, saturate, lanes, at);
	else
		encode_words((uint16_t *)o->data + at, o->type, from, n, round, saturate, lanes, at);
}

double fp8_value(uint32_t type, uint8_t code, bool gaudi3) {
	const format f = type == E5M2 ? e5m2 : gaudi3 ? e4m3_gaudi3 : e4m3_gaudi2;
	const uint32_t a = code & 0x7f, field = a >> f.fraction, fraction = a & ((1u << f.fraction) - 1);
	const double sign = code & 0x80 ? -1 : 1;
	if (a > f.max_code)
		return a == f.overflow && f.overflow != f.nan ? sign * INFINITY : NAN;
	return sign * ldexp(field ? fraction | 1u << f.fraction : fraction, (field ? (int)field : 1) - f.bias - f.fraction);
}

static float f16_value(uint16_t code) {
	const int field = code >> 10 & 31, fraction = code & 1023;
	const float a = field == 31 ? (fraction ? NAN : INFINITY) : ldexpf(field ? fraction | 1024 : fraction, (field ? field : 1) - 25);
	return code >> 15 ? -a : a;
}

// Values of the FP8 codes: [E5M2][gaudi3][code].
static float tables[2][2][256];

static void __attribute__((constructor)) make_tables(void) {
	for (int i = 0; i < 256; i++)
		for (int gaudi3 = 0; gaudi3 < 2; gaudi3++) {
			tables[0][gaudi3][i] = fp8_value(E4M3, i, gaudi3);
			tables[1][gaudi3][i] = fp8_value(E5M2, i, gaudi3);
		}
}

#define LOAD(type, value)                                  \
	{                                                  \
		const type *from = (const type *)o->data + at; \
		for (uint64_t i = 0; i < n; i++) {         \
			const type x = from[i];            \
			to[i] = value;                     \
		}                                          \
		return;                                    \
	}

WIDE void load(float *restrict to, const operand *o, uint64_t at, uint64_t n, bool gaudi3) {
	const float *table = tables[o->type == E5M2][gaudi3];
	switch (o->type) {
	case F32: memcpy(to, (const float *)o->data + at, n * sizeof *to); return;
	case BF16: LOAD(uint16_t, float_of((uint32_t)x << 16))
	case F16: LOAD(uint16_t, f16_value(x))
	case E4M3:
	case E5M2: LOAD(uint8_t, table[x])
	case I8: LOAD(int8_t, x)
	case I32: LOAD(int32_t, x)
	}
}

float element(const operand *o, uint64_t at, bool gaudi3) {
	float x = 0;
	load(&x, o, at, 1, gaudi3);
	return x;
}

// integer rounds to nearest even and clamps to the range; NaN becomes INT32_MIN.
static inline int32_t integer(float x) { return !(x > (float)INT32_MIN) ? INT32_MIN : x >= (float)INT32_MAX ? INT32_MAX : lrintf(x); }

// narrow_integer does so for INT8. Adding 1.5·2^23 rounds to integers.
static inline int8_t narrow_integer(float x) {
	const float inside = !(x > INT8_MIN) ? INT8_MIN : x > INT8_MAX ? INT8_MAX : x;
	return (int8_t)(bits_of(inside + 0x1.8p23f) - bits_of(0x1.8p23f));
}

#define STORE(type, value)                           \
	{                                            \
		type *to = (type *)o->data + at;     \
		for (uint64_t i = 0; i < n; i++) {   \
			const float x = from[i];     \
			to[i] = value;               \
		}                                    \
		return;                              \
	}

WIDE void store(const operand *o, uint64_t at, const float *restrict from, uint64_t n, bool gaudi3) {
	switch (o->type) {
	case F32: memcpy((float *)o->data + at, from, n * sizeof *from); return;
	case BF16:
	case F16:
	case E4M3:
	case E5M2: encode(o, at, from, n, gaudi3, TO_NEAREST, false, NULL); return;
	case I8: STORE(int8_t, narrow_integer(x))
	case I32: STORE(int32_t, integer(x))
	}
}
