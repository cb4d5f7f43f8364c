// A kernel is one macro for both vector widths, which names its registers V0 to V15.
// Here they are 512 bits wide. A file that includes this one includes ymm_amd64.h later,
// for its AVX2 kernels.

#include "widest_amd64.h"

// LOOP runs body for each vector of CX elements; AX counts bytes.
#define LOOP(body) \
	SHLQ $2, CX \
	XORQ AX, AX \
loop: \
	body \
	ADDQ $WIDTH, AX \
	CMPQ AX, CX \
	JB loop

// FOLD reduces the sixteen lanes in V12 (AVX2: V12 and V13) by do, into X0.
#define FOLD(do, doScalar) \
	FOLD_HALVES(do) \
	VEXTRACTF128 $1, Y0, X1 \
	do X1, X0, X0 \
	VPERMILPS $0x0e, X0, X1 \
	do X1, X0, X0 \
	VMOVSHDUP X0, X1 \
	doScalar X1, X0, X0

#define V0 Z0
#define V1 Z1
#define V2 Z2
#define V3 Z3
#define V4 Z4
#define V5 Z5
#define V6 Z6
#define V7 Z7
#define V8 Z8
#define V9 Z9
#define V10 Z10
#define V11 Z11
#define V12 Z12
#define V13 Z13
#define V14 Z14
#define V15 Z15
#define WIDTH 64

// SIXTEEN applies do to each vector of sixteen elements and its lanes, THIRTYTWO to those
// of 32. HALVE_LANES adds the upper 16 of 32 lanes to the lower.
#define SIXTEEN(do) \
	do(0, V12)
#define THIRTYTWO(do) \
	do(0, V12) \
	do(64, V13)
#define HALVE_LANES \
	VADDPS V13, V12, V12
#define FOLD_HALVES(do) \
	VEXTRACTF64X4 $1, Z12, Y0 \
	do Y0, Y12, Y0

// The constants of EXP (exp_amd64.h). EXP_SETUP sets them, and V14 and V15.
#define LOG2E Z16
#define ROUND Z17
#define LN2HI Z18
#define LN2LO Z19
#define POLY5 Z20
#define POLY4 Z21
#define POLY3 Z22
#define POLY2 Z23
#define POLY1 Z24
#define POLY0 Z25
#define ONE Z26

// EXP_SCALE multiplies V2 by two to the power of V1, an integer.
#define EXP_SCALE VSCALEFPS Z1, Z2, Z2

#define EXP_SETUP \
	VBROADCASTSS ·expVectors+0(SB), Z14 \
	VBROADCASTSS ·expVectors+32(SB), Z15 \
	VBROADCASTSS ·expVectors+64(SB), Z16 \
	VBROADCASTSS ·expVectors+96(SB), Z17 \
	VBROADCASTSS ·expVectors+128(SB), Z18 \
	VBROADCASTSS ·expVectors+160(SB), Z19 \
	VBROADCASTSS ·expVectors+192(SB), Z20 \
	VBROADCASTSS ·expVectors+224(SB), Z21 \
	VBROADCASTSS ·expVectors+256(SB), Z22 \
	VBROADCASTSS ·expVectors+288(SB), Z23 \
	VBROADCASTSS ·expVectors+320(SB), Z24 \
	VBROADCASTSS ·expVectors+352(SB), Z25 \
	VBROADCASTSS ·expVectors+384(SB), Z26
