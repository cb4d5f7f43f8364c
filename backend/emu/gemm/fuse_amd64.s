//go:build !noasm

#include "go_asm.h"
#include "textflag.h"

// Fused sums of device models; fuseTile in fuse.go defines the result. A kernel is a macro
// over vectors V0-V15, the same for both widths: four rows of one vector of columns.
//
// DI is the fuseTile. Along k, SI and BX walk through A and B, DX and CX through their
// powers; R9 is the distance of rows of A, R12 and R13 that of consecutive k of A and B.
// V0-V3 are sums, V4-V7 the scales of terms, V8-V11 addends and results.

// Partial sums in float64 are at SP, two vectors for each row. Above them: the rest of k,
// the rest of this group, the group's length; MXCSR; addresses of the scales of this
// group's rows and columns; a saved vector for each row.
#define LEFT    512(SP)
#define REST    520(SP)
#define LENGTH  528(SP)
#define CONTROL 536(SP)
#define SCALES_A 544(SP)
#define SCALES_B 552(SP)
#define SCALED   576

#define EACH_ROW(do) \
	do(V0, H0, V4, V8, H8, 0) \
	do(V1, H1, V5, V9, H9, 1) \
	do(V2, H2, V6, V10, H10, 2) \
	do(V3, H3, V7, V11, H11, 3)

// FOUR calls do for four rows of A or its powers at R8, each with two registers.
#define FOUR(do) \
	do((R8), V0, V4) \
	do((R8)(R9*1), V1, V5) \
	do((R8)(R9*2), V2, V6) \
	do((R10), V3, V7)

#define START(a, b) \
	MOVQ a, R8 \
	LEAQ (a)(R9*2), R10 \
	ADDQ R9, R10 \
	MOVQ b, R11

#define NEXT_K \
	ADDQ R12, R8 \
	ADDQ R12, R10 \
	ADDQ R13, R11

#define LOAD_C(sum, h, scale, c, hc, row) \
	VMOVUPS (AX), c \
	ADDQ    R8, AX

#define STORE_C(sum, h, scale, c, hc, row) \
	VMOVUPS c, (AX) \
	ADDQ    R8, AX

#define CLEAR(sum, h, scale, c, hc, row) \
	VMOVUPS V13, (2*WIDTH*row)(SP) \
	VMOVUPS V13, (2*WIDTH*row+WIDTH)(SP)

#define BEGIN_POWER(sum, h, scale, c, hc, row) \
	VXORPS scale, scale, scale

// POWER_OF_C includes the power of an addend that is aligned.
#define POWER_OF_C(sum, h, scale, c, hc, row) \
	VANDPS V13, c, V12 \
	VMAXPS V14, V12, V12 \
	VMAXPS V12, scale, scale

// TIMES_SCALES multiplies by the scales of a row, at R8, and of the columns, V12. Only a
// group of zeros can overflow; MXCSR rounds it to a finite number.
#define TIMES_SCALES(sum, h, scale, c, hc, row) \
	TIMES((4*row)(R8), V12, V13) \
	VMULPS V13, scale, scale

#define SAVE_SCALED(sum, h, scale, c, hc, row) \
	VMOVUPS scale, (SCALED+WIDTH*row)(SP)

#define LOAD_SCALED(sum, h, scale, c, hc, row) \
	VMOVUPS (SCALED+WIDTH*row)(SP), scale

#define LARGEST(a, sum, scale) \
	TIMES(a, V12, V13) \
	VMAXPS V13, scale, scale

// INVERT turns the largest power into the scale of the terms.
#define INVERT(sum, h, scale, c, hc, row) \
	VPSUBD scale, V13, scale

#define BEGIN_SUM(sum, h, scale, c, hc, row) \
	VXORPS sum, sum, sum

#define ADD_TERM(a, sum, scale) \
	TIMES(a, V12, V13) \
	VMULPS     scale, V13, V13 \
	VCVTTPS2DQ V13, V13 \
	VPADDD     V13, sum, sum

#define ADD_C(sum, h, scale, c, hc, row) \
	VANDPS     V14, c, V13 \
	VMULPS     scale, V13, V13 \
	VCVTTPS2DQ V13, V13 \
	VPADDD     V13, sum, sum

// KEEP_PART adds an int32 sum to the partial sum in float64, which holds more bits.
#define KEEP_PART(sum, h, scale, c, hc, row) \
	VCVTDQ2PD h, V13 \
	VADDPD    (2*WIDTH*row)(SP), V13, V13 \
	VMOVUPS   V13, (2*WIDTH*row)(SP) \
	UPPER(sum, h) \
	VCVTDQ2PD h, V13 \
	VADDPD    (2*WIDTH*row+WIDTH)(SP), V13, V13 \
	VMOVUPS   V13, (2*WIDTH*row+WIDTH)(SP) \
	VXORPS    sum, sum, sum

// VALUE sets V15 to the values of half of a row's sums, and V14 to the value of a unit.
#define VALUE(h, at) \
	VCVTPS2PD H13, V14 \
	VCVTDQ2PD h, V15 \
	VADDPD    at(SP), V15, V15 \
	VMULPD    V14, V15, V15

// TRUNCATE computes a row's results from its sums, rounded as MXCSR says.
#define TRUNCATE(sum, h, scale, c, hc, row) \
	VPBROADCASTD fuseTile_inverse(DI), V13 \
	VPSUBD       scale, V13, V13 \
	VALUE(h, (2*WIDTH*row)) \
	NARROW(V15, H12) \
	UPPER(V13, H13) \
	UPPER(sum, h) \
	VALUE(h, (2*WIDTH*row+WIDTH)) \
	NARROW(V15, H13) \
	JOIN(H13, V12) \
	VPBROADCASTD fuseTile_keep(DI), V13 \
	VANDPS       V13, V12, c

// SPREAD stores the float64 values of a row's sums.
#define SPREAD(sum, h, scale, c, hc, row) \
	VPBROADCASTD fuseTile_inverse(DI), V13 \
	VPSUBD       scale, V13, V13 \
	VALUE(h, (2*WIDTH*row)) \
	VMOVUPS      V15, (2*WIDTH*row)(SP) \
	UPPER(V13, H13) \
	UPPER(sum, h) \
	VALUE(h, (2*WIDTH*row+WIDTH)) \
	VMOVUPS      V15, (2*WIDTH*row+WIDTH)(SP)

// JOIN_C adds the addends H13 to the values at(SP) and rounds once, to nearest. The error
// of the float64 sum, V2, decides its last bit, which is far below a float32's.
#define JOIN_C(at, h) \
	VMOVUPS   at(SP), V0 \
	VCVTPS2PD H13, V1 \
	VADDPD    V1, V0, V3 \
	VSUBPD    V0, V3, V4 \
	VSUBPD    V4, V3, V5 \
	VSUBPD    V5, V0, V5 \
	VSUBPD    V4, V1, V4 \
	VADDPD    V4, V5, V2 \
	VXORPS    V2, V3, V5 \
	VPSRAD    $31, V5, V5 \
	VPSHUFD   $0xf5, V5, V5 \
	VPBROADCASTQ fuseTile_one(DI), V6 \
	VPOR_     V6, V5, V5 \
	VPAND_    V6, V3, V7 \
	VPSUBQ    V6, V7, V7 \
	VPAND_    V7, V5, V5 \
	WHERE_NOT_0(V2, V5) \
	VPADDQ    V5, V3, V3 \
	NARROW(V3, h)

#define NEAREST(sum, h, scale, c, hc, row) \
	VMOVAPS c, V13 \
	JOIN_C((2*WIDTH*row), H12) \
	UPPER(c, hc) \
	VMOVAPS c, V13 \
	JOIN_C((2*WIDTH*row+WIDTH), H13) \
	JOIN(H13, V12) \
	VMOVAPS V12, c

#define FUSE \
	MOVQ    t+0(FP), DI \
	STMXCSR CONTROL \
	LDMXCSR fuseTile_mxcsr(DI) \
	MOVQ    fuseTile_a(DI), SI \
	MOVQ    fuseTile_powerA(DI), DX \
	MOVQ    fuseTile_b(DI), BX \
	MOVQ    fuseTile_powerB(DI), CX \
	MOVQ    fuseTile_step(DI), R9 \
	MOVQ    fuseTile_stepK(DI), R12 \
	MOVQ    fuseTile_stepB(DI), R13 \
	MOVQ    fuseTile_c(DI), AX \
	MOVQ    fuseTile_stepB(DI), R8 \
	EACH_ROW(LOAD_C) \
	VXORPS  V13, V13, V13 \
	EACH_ROW(CLEAR) \
	MOVQ    fuseTile_k(DI), AX \
	MOVQ    AX, LEFT \
	MOVQ    fuseTile_scaleA(DI), AX \
	MOVQ    AX, SCALES_A \
	MOVQ    fuseTile_scaleB(DI), AX \
	MOVQ    AX, SCALES_B \
group: \
	MOVQ    fuseTile_group(DI), AX \
	CMPQ    AX, LEFT \
	CMOVQGT LEFT, AX \
	MOVQ    AX, LENGTH \
	MOVQ    AX, REST \
	EACH_ROW(BEGIN_POWER) \
	START(DX, CX) \
powers: \
	VMOVUPS (R11), V12 \
	FOUR(LARGEST) \
	NEXT_K \
	DECQ    AX \
	JNZ     powers \
	MOVQ    R8, DX \
	MOVQ    R11, CX \
	MOVQ    SCALES_A, R8 \
	MOVQ    SCALES_B, R11 \
	TESTQ   R8, R8 \
	JEQ     addend \
	VMOVUPS (R11), V12 \
	EACH_ROW(TIMES_SCALES) \
addend: \
	VPBROADCASTD fuseTile_exponent(DI), V13 \
	VBROADCASTSS fuseTile_minPower(DI), V14 \
	EACH_ROW(POWER_OF_C) \
	VPBROADCASTD fuseTile_units(DI), V13 \
	EACH_ROW(INVERT) \
	TESTQ   R8, R8 \
	JEQ     sum \
	EACH_ROW(SAVE_SCALED) \
	VMOVUPS (R11), V12 \
	EACH_ROW(TIMES_SCALES) \
	ADDQ    fuseTile_nextA(DI), R8 \
	MOVQ    R8, SCALES_A \
	ADDQ    fuseTile_nextB(DI), R11 \
	MOVQ    R11, SCALES_B \
sum: \
	EACH_ROW(BEGIN_SUM) \
	START(SI, BX) \
chunk: \
	MOVQ    fuseTile_chunk(DI), AX \
	CMPQ    AX, REST \
	CMOVQGT REST, AX \
	SUBQ    AX, REST \
terms: \
	VMOVUPS (R11), V12 \
	FOUR(ADD_TERM) \
	NEXT_K \
	DECQ    AX \
	JNZ     terms \
	CMPQ    REST, $0 \
	JEQ     last \
	EACH_ROW(KEEP_PART) \
	JMP     chunk \
last: \
	MOVQ    R8, SI \
	MOVQ    R11, BX \
	CMPQ    SCALES_A, $0 \
	JEQ     join \
	EACH_ROW(LOAD_SCALED) \
join: \
	VPBROADCASTD fuseTile_addend(DI), V14 \
	EACH_ROW(ADD_C) \
	CMPB    fuseTile_addendLast(DI), $0 \
	JNE     nearest \
	EACH_ROW(TRUNCATE) \
	MOVQ    fuseTile_chunk(DI), AX \
	CMPQ    AX, LENGTH \
	JGE     next \
	VXORPS  V13, V13, V13 \
	EACH_ROW(CLEAR) \
next: \
	MOVQ    LENGTH, AX \
	SUBQ    AX, LEFT \
	JNE     group \
	MOVQ    fuseTile_c(DI), AX \
	MOVQ    fuseTile_stepB(DI), R8 \
	EACH_ROW(STORE_C) \
	LDMXCSR CONTROL \
	VZEROUPPER \
	RET \
nearest: \
	EACH_ROW(SPREAD) \
	EACH_ROW(NEAREST) \
	VXORPS  V13, V13, V13 \
	EACH_ROW(CLEAR) \
	JMP     next

// POWERS stores the powers of two of src, at least minPower, and 0 for zeros. V13 is 2^40,
// V14 minPower, V15 the exponent mask, V2 the maximum.
#define POWERS \
	MOVQ         dst+0(FP), DI \
	MOVQ         src+8(FP), SI \
	MOVQ         n+16(FP), CX \
	VBROADCASTSS minPower+24(FP), V14 \
	MOVL         $0x7f800000, AX \
	VMOVD        AX, X15 \
	VBROADCASTSS X15, V15 \
	MOVL         $0x53800000, AX \
	VMOVD        AX, X13 \
	VBROADCASTSS X13, V13 \
	VXORPS       V2, V2, V2 \
	XORQ         AX, AX \
loop: \
	VANDPS  (SI)(AX*4), V15, V0 \
	VMULPS  V13, V0, V1 \
	VMAXPS  V14, V0, V0 \
	VMINPS  V1, V0, V0 \
	VMAXPS  V0, V2, V2 \
	VMOVUPS V0, (DI)(AX*4) \
	ADDQ    $(WIDTH/4), AX \
	CMPQ    AX, CX \
	JB      loop \
	UPPER_IF_512 \
	VEXTRACTF128 $1, Y2, X1 \
	VMAXPS    X1, X2, X2 \
	VPERMILPS $0x0e, X2, X1 \
	VMAXPS    X1, X2, X2 \
	VMOVSHDUP X2, X1 \
	VMAXSS    X1, X2, X2 \
	VMOVSS    X2, ret+32(FP) \
	VZEROUPPER \
	RET

#define WIDTH 64
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
#define H0 Y0
#define H1 Y1
#define H2 Y2
#define H3 Y3
#define H8 Y8
#define H9 Y9
#define H10 Y10
#define H11 Y11
#define H12 Y12
#define H13 Y13
#define VPAND_ VPANDQ
#define VPOR_ VPORQ
#define TIMES(a, b, to) VMULPS.BCST a, b, to
#define UPPER(v, h) VEXTRACTF64X4 $1, v, h
#define JOIN(h, v) VINSERTF64X4 $1, h, v, v
#define NARROW(v, h) VCVTPD2PS v, h
#define WHERE_NOT_0(test, x) \
	VPTESTMQ    test, test, K1 \
	VMOVDQA64.Z x, K1, x
#define UPPER_IF_512 \
	VEXTRACTF64X4 $1, Z2, Y1 \
	VMAXPS        Y1, Y2, Y2

// func fuse16AVX512(t *fuseTile)
TEXT ·fuse16AVX512(SB), 0, $832-8
	FUSE

// func powersAVX512(dst, src *float32, n int, minPower float32) (largest float32)
TEXT ·powersAVX512(SB), NOSPLIT, $0-36
	POWERS

#undef WIDTH
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
#undef H0
#undef H1
#undef H2
#undef H3
#undef H8
#undef H9
#undef H10
#undef H11
#undef H12
#undef H13
#undef VPAND_
#undef VPOR_
#undef TIMES
#undef UPPER
#undef JOIN
#undef NARROW
#undef WHERE_NOT_0
#undef UPPER_IF_512

#define WIDTH 32
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
#define H0 X0
#define H1 X1
#define H2 X2
#define H3 X3
#define H8 X8
#define H9 X9
#define H10 X10
#define H11 X11
#define H12 X12
#define H13 X13
#define VPAND_ VPAND
#define VPOR_ VPOR
#define TIMES(a, b, to) \
	VBROADCASTSS a, to \
	VMULPS       b, to, to
#define UPPER(v, h) VEXTRACTF128 $1, v, h
#define JOIN(h, v) VINSERTF128 $1, h, v, v
#define NARROW(v, h) VCVTPD2PSY v, h
#define WHERE_NOT_0(test, x) \
	VXORPS   Y7, Y7, Y7 \
	VPCMPEQQ Y7, test, Y7 \
	VPANDN   x, Y7, x
#define UPPER_IF_512

// func fuse8AVX2(t *fuseTile)
TEXT ·fuse8AVX2(SB), 0, $832-8
	FUSE

// func powersAVX2(dst, src *float32, n int, minPower float32) (largest float32)
TEXT ·powersAVX2(SB), NOSPLIT, $0-36
	POWERS
