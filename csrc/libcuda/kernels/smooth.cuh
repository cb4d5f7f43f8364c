// The smoothing scales of Smooth-SwiGLU, per token and per channel.
#pragma once
#include "octet.cuh"

// smoothing_scale returns q·2^margin, rounded up to a power of two, or to FP32 if exact,
// clamped to 2^±30; 1 if q is 0 or not finite.
__device__ inline float smoothing_scale(double q, int margin, bool exact) {
	if (!(q > 0 && q <= 1.7976931348623157e308))
		return 1.0f;
	q = ldexp(q, margin);
	if (!exact) {
		const u64 fraction = 0xfffffffffffffull;
		const u64 bits = (u64)__double_as_longlong(q);
		q = __longlong_as_double((i64)((bits + fraction) & ~fraction)); // a carry increments the exponent
	}
	return (float)fmin(fmax(q, 0x1p-30), 0x1p30);
}
