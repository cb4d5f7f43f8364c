// The macros of zmm_amd64.h for vectors of 256 bits. Include it after zmm_amd64.h.

#undef V0
#undef V1
#undef V2
#undef V3
#undef V4
#undef V5
#undef V6
#undef V7
#undef V8
#undef V9
#undef V10
#undef V11
#undef V12
#undef V13
#undef V14
#undef V15
#undef WIDTH
#undef SIXTEEN
#undef THIRTYTWO
#undef HALVE_LANES
#undef FOLD_HALVES
#undef FOUR
#undef GROUP
#undef EXP2_1
#undef EXP2_2
#undef EXP2_3
#undef EXP2_4
#undef EXP2_SETUP
#undef POWERS_OF_FOUR
#undef SCALE_POWER

#define V0 Y0
#define V1 Y1
#define V2 Y2
#define V3 Y3
#define V4 Y4
#define V5 Y5
#define V6 Y6
#define V7 Y7
#define V8 Y8
#define V9 Y9
#define V10 Y10
#define V11 Y11
#define V12 Y12
#define V13 Y13
#define V14 Y14
#define V15 Y15
#define WIDTH 32

#define SIXTEEN(do) \
	do(0, V12) \
	do(32, V13)
#define THIRTYTWO(do) \
	do(0, V12) \
	do(32, V13) \
	do(64, V14) \
	do(96, V15)
#define HALVE_LANES(do) \
	do V14, V12, V12 \
	do V15, V13, V13
#define FOLD_HALVES(do) \
	do Y13, Y12, Y0

#define FOUR(do) \
	do(0, V0, V1, V2, V12) \
	do(32, V3, V4, V5, V13) \
	do(64, V6, V7, V8, V12) \
	do(96, V9, V10, V11, V13)
#define GROUP(do) \
	do(0, V0, V1, V2, V12) \
	do(32, V3, V4, V5, V13)

// AVX2 has no registers left for these constants.
#define EXP2_1 ·exp2Vectors+0(SB)
#define EXP2_2 ·exp2Vectors+32(SB)
#define EXP2_3 ·exp2Vectors+64(SB)
#define EXP2_4 ·exp2Vectors+96(SB)
#define EXP2_SETUP

// POWERS_OF_FOUR clamps and scales only if an x is so large in magnitude that 2^n is not a
// normal number. Otherwise n is added to the exponent of p, which gives the same bits. NaN
// compares as large.
#define POWERS_OF_FOUR(power) \
	FOUR(DOUBLE_BITS) \
	VPMAXUD V1, V4, V1 \
	VPMAXUD V7, V10, V7 \
	VPMAXUD V1, V7, V1 \
	VPSRLD $1, V1, V1 \
	VPBROADCASTD POWER_TABLE+8(SB), V4 \
	VPCMPGTD V4, V1, V1 \
	VPTEST V1, V1 \
	JZ normal \
	POWERS(power, FOUR) \
	JMP powers \
normal: \
	power(FOUR) \
	FOUR(ADD_EXPONENT) \
powers:

// DOUBLE_BITS shifts the sign out of x, into n.
#define DOUBLE_BITS(at, x, n, p, lanes) \
	VPADDD x, x, n

#define ADD_EXPONENT(at, x, n, p, lanes) \
	VCVTPS2DQ n, n \
	VPSLLD $23, n, n \
	VPADDD n, p, p

// SCALE_POWER multiplies p by two powers of two, because n may exceed the range of one
// exponent. V15 is 1.
#define SCALE_POWER(at, x, n, p, lanes) \
	VCVTPS2DQ n, n \
	VPSRAD $1, n, x \
	VPSUBD x, n, n \
	VPSLLD $23, x, x \
	VPSLLD $23, n, n \
	VPADDD V15, x, x \
	VPADDD V15, n, n \
	VMULPS x, p, p \
	VMULPS n, p, p
