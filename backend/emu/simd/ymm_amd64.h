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
#undef LOG2E
#undef ROUND
#undef LN2HI
#undef LN2LO
#undef POLY5
#undef POLY4
#undef POLY3
#undef POLY2
#undef POLY1
#undef POLY0
#undef ONE
#undef EXP_SCALE
#undef EXP_SETUP

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
#define HALVE_LANES \
	VADDPS V14, V12, V12 \
	VADDPS V15, V13, V13
#define FOLD_HALVES(do) \
	do Y13, Y12, Y0

// AVX2 has no registers left for the constants of EXP.
#define LOG2E ·expVectors+64(SB)
#define ROUND ·expVectors+96(SB)
#define LN2HI ·expVectors+128(SB)
#define LN2LO ·expVectors+160(SB)
#define POLY5 ·expVectors+192(SB)
#define POLY4 ·expVectors+224(SB)
#define POLY3 ·expVectors+256(SB)
#define POLY2 ·expVectors+288(SB)
#define POLY1 ·expVectors+320(SB)
#define POLY0 ·expVectors+352(SB)
#define ONE ·expVectors+384(SB)

// EXP_SCALE multiplies by two powers of two, because the integer in V1 may exceed the
// range of one exponent.
#define EXP_SCALE \
	VCVTPS2DQ Y1, Y1 \
	VPSRAD $1, Y1, Y3 \
	VPSUBD Y3, Y1, Y1 \
	VPSLLD $23, Y3, Y3 \
	VPSLLD $23, Y1, Y1 \
	VPADDD ONE, Y3, Y3 \
	VPADDD ONE, Y1, Y1 \
	VMULPS Y3, Y2, Y2 \
	VMULPS Y1, Y2, Y2

#define EXP_SETUP \
	VMOVUPS ·expVectors+0(SB), Y14 \
	VMOVUPS ·expVectors+32(SB), Y15
