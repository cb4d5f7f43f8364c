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
// of 32. HALVE_LANES reduces 32 lanes to 16 by do.
#define SIXTEEN(do) \
	do(0, V12)
#define THIRTYTWO(do) \
	do(0, V12) \
	do(64, V13)
#define HALVE_LANES(do) \
	do V13, V12, V12
#define FOLD_HALVES(do) \
	VEXTRACTF64X4 $1, Z12, Y0 \
	do Y0, Y12, Y0

// FOUR applies do to four vectors: the offset of each, three registers, and the register
// with its lanes. GROUP does the same for the vectors of sixteen elements.
#define FOUR(do) \
	do(0, V0, V1, V2, V12) \
	do(64, V3, V4, V5, V12) \
	do(128, V6, V7, V8, V12) \
	do(192, V9, V10, V11, V12)
#define GROUP(do) \
	do(0, V0, V1, V2, V12)

// The constants of EXP2_POLYNOMIAL (powers_amd64.h), which EXP2_SETUP sets.
#define EXP2_1 Z16
#define EXP2_2 Z17
#define EXP2_3 Z18
#define EXP2_4 Z19
#define EXP2_SETUP \
	VBROADCASTSS ·exp2Vectors+0(SB), EXP2_1 \
	VBROADCASTSS ·exp2Vectors+32(SB), EXP2_2 \
	VBROADCASTSS ·exp2Vectors+64(SB), EXP2_3 \
	VBROADCASTSS ·exp2Vectors+96(SB), EXP2_4

// POWERS_OF_FOUR computes the powers of FOUR's x, in p; power is EXP or EXP2.
#define POWERS_OF_FOUR(power) POWERS(power, FOUR)

// SCALE_POWER multiplies p by two to the power of n, an integer.
#define SCALE_POWER(at, x, n, p, lanes) \
	VSCALEFPS n, p, p
