// The parts of the casts in cast_amd64.s, in the macros of zmm_amd64.h and ymm_amd64.h. DI, SI and
// CX are dst, src and the number of elements left. SRC holds elements, V2 their codes.

// LOAD loads SRC. The prefetch helps for data outside the caches, because the hardware
// prefetcher stops at each page: casts then reach nine tenths of copy bandwidth
// instead of two thirds.
#define LOAD \
	PREFETCHT0 2560(SI) \
	VMOVUPS    (SI), SRC

// LOAD_F16 loads F16 codes and dequantizes them to SRC.
#define LOAD_F16 \
	PREFETCHT0 2560(SI) \
	VCVTPH2PS  (SI), SRC \
	TIMES_SCALE_INV(scaleInv+36(FP))

// MAGNITUDES loads SRC, sets V0 to its magnitudes and folds them into TOP, the amax.
#define MAGNITUDES(load) \
	load \
	AND     ABS, SRC, V0 \
	VPMAXUD V0, TOP, TOP

// SCALED sets V0 to the magnitudes of SRC times SCALE. SCALE is positive, so the code
// has the sign of SRC.
#define SCALED(load) \
	MAGNITUDES(load) \
	VMULPS SCALE, V0, V0

// NEAREST is castNearest of V0. The low bits of code are the result, the bits above are
// undefined. With 512 bits, floating-point min has twice the throughput of integer min;
// its result for NaN is never used (rejectNaN).
#define NEAREST(code) \
	VMINPS LIMIT, V0, code \
	ROUND(code)

// STOCHASTIC is castStochastic of V0 with the random bits V5; the code is in the top
// bits of V2. Below the code, a lane keeps as many fraction bits as fit; only the
// upper sixteen count. SCALE includes lift, which maps the smallest normal value to 4.
// Shifted float32 bits from there on are the code, except for one exponent bit above
// it, which the sign replaces.
#define STOCHASTIC \
	PLACED \
	VPADDD  V5, V2, V2 \
	SIGN_ON_TOP

// PLACED sets V2 to the magnitude V0, saturated, with its code on top.
#define PLACED \
	VMINPS CEILING, V0, V2 \
	PLACE

// RANDOM sets V1 to the words of Random for the next two vectors of elements. WEYL
// holds the words' Weyl values.
#define RANDOM \
	VPSRLD  $16, WEYL, V1 \
	XOR3(KEY, WEYL, V1) \
	VPMULLD MIX1, V1, V1 \
	VPSRLD  $15, V1, V2 \
	XOR3(WEYL, V2, V1) \
	VPADDD  STEP, WEYL, WEYL \
	VPMULLD MIX2, V1, V1 \
	VPSRLD  $16, V1, V2 \
	XOR     V2, V1, V1

// TWICE runs do with the random bits V5 of a vector of elements, then with those of the
// next vector. VPSHUFB cannot move bytes between 128-bit lanes, so LANES puts the words
// into the lanes that need them.
#define TWICE(do) \
	RANDOM \
	VPSHUFB FIRST, V1, V5 \
	do \
	VPSHUFB SECOND, V1, V5 \
	do

// STEP_ON advances SI and DI by one vector. from and to are bytes per element.
#define STEP_ON(from, to) \
	ADDQ $(from*WIDTH), SI \
	ADDQ $(to*WIDTH), DI

#define BEGIN \
	MOVQ dst+0(FP), DI \
	MOVQ src+8(FP), SI \
	MOVQ n+16(FP), CX \
	MOVQ c+24(FP), R8

#define BEGIN_SCALED \
	BEGIN \
	XOR          TOP, TOP, TOP \
	VBROADCASTSS scale+32(FP), SCALE

#define BEGIN_RANDOM(first, key) \
	BEGIN_RANDOM_IN(LANES, first, key)

// BEGIN_RANDOM_IN is BEGIN_RANDOM with the order of the words in a vector.
#define BEGIN_RANDOM_IN(order, first, key) \
	RANDOM_CONSTANTS \
	VPMULLD      order, STEP, WEYL \
	VPSLLD       $LOG2, STEP, STEP \
	VBROADCASTSS first, V0 \
	VPADDD       V0, WEYL, WEYL \
	VBROADCASTSS key, KEY
