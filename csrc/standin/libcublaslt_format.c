//go:build ignore

// The number formats of the stand-in for cuBLASLt.

#include "libcublaslt.h"

#include <math.h>

int bits(int type) {
	switch (type) {
	case F32: return 32;
	case F16:
	case BF16: return 16;
	case E4M3:
	case E5M2: return 8;
	case E2M1: return 4;
	}
	return 0;
}

typedef struct {
	int fraction, min_exponent; // fraction bits; exponent of the smallest normal value
	double max;                 // finite
	unsigned max_code;
	int infinity; // whether max_code + 1 is infinity
	int sign;     // the sign bit
} format;

static format format_of(int type) {
	switch (type) {
	case E4M3: return (format){3, -6, 448, 0x7e, 0, 0x80};
	case E5M2: return (format){2, -14, 57344, 0x7b, 1, 0x80};
	case E2M1: return (format){1, 0, 6, 7, 0, 8};
	case F16: return (format){10, -14, 65504, 0x7bff, 1, 0x8000};
	}
	return (format){7, -126, 0x1.fep127, 0x7f7f, 1, 0x8000};
}

float decode(const void *data, int type, uint64_t i) {
	if (type == F32)
		return ((const float *)data)[i];
	unsigned code;
	if (type == E2M1) // the element of the even index in the low half
		code = ((const uint8_t *)data)[i / 2] >> i % 2 * 4 & 15;
	else
		code = bits(type) == 8 ? ((const uint8_t *)data)[i] : ((const uint16_t *)data)[i];
	const format f = format_of(type);
	const unsigned magnitude = code & (f.sign - 1);
	double v;
	if (magnitude > f.max_code)
		v = f.infinity && magnitude == f.max_code + 1 ? INFINITY : NAN;
	else if (magnitude >> f.fraction == 0)
		v = ldexp(magnitude, f.min_exponent - f.fraction);
	else
		v = ldexp((magnitude & ((1u << f.fraction) - 1)) + (1u << f.fraction), (int)(magnitude >> f.fraction) - 1 + f.min_exponent - f.fraction);
	return code & f.sign ? -v : v;
}

void encode(void *data, int type, uint64_t i, float x) {
	if (type == F32) {
		((float *)data)[i] = x;
		return;
	}
	const format f = format_of(type);
	const double v = fabs((double)x);
	unsigned code;
	if (isnan(x)) {
		code = f.sign - 1;
	} else {
		int e = 0;
		frexp(v, &e);
		int quantum = e - 1 < f.min_exponent ? f.min_exponent - f.fraction : e - 1 - f.fraction;
		double rounded = ldexp(nearbyint(ldexp(v, -quantum)), quantum);
		if (isinf(v) || rounded > f.max) {
			code = is_narrow(type) ? f.max_code : f.max_code + 1;
		} else {
			frexp(rounded, &e);
			if (rounded == 0 || e - 1 < f.min_exponent)
				code = ldexp(rounded, f.fraction - f.min_exponent);
			else
				code = ((e - 1 - f.min_exponent + 1) << f.fraction) + ldexp(rounded, f.fraction - e + 1) - (1u << f.fraction);
		}
	}
	if (signbit(x))
		code |= f.sign;
	if (bits(type) == 8)
		((uint8_t *)data)[i] = code;
	else
		((uint16_t *)data)[i] = code;
}
