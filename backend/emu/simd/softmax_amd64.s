//go:build !noasm

#include "textflag.h"
#include "zmm_amd64.h"

// The constants of EXP2. EXP2_SETUP sets them, and V14 and V15.
#define EXP2_ROUND Z16
#define EXP2_1 Z17
#define EXP2_2 Z18
#define EXP2_3 Z19
#define EXP2_4 Z20
#define EXP2_5 Z21
#define EXP2_6 Z22
#define EXP2_ONE Z23
#define EXP2_SETUP \
	VBROADCASTSS ·exp2Vectors+0(SB), Z14 \
	VBROADCASTSS ·exp2Vectors+32(SB), Z15 \
	VBROADCASTSS ·exp2Vectors+64(SB), Z16 \
	VBROADCASTSS ·exp2Vectors+96(SB), Z17 \
	VBROADCASTSS ·exp2Vectors+128(SB), Z18 \
	VBROADCASTSS ·exp2Vectors+160(SB), Z19 \
	VBROADCASTSS ·exp2Vectors+192(SB), Z20 \
	VBROADCASTSS ·exp2Vectors+224(SB), Z21 \
	VBROADCASTSS ·exp2Vectors+256(SB), Z22 \
	VBROADCASTSS ·exp2Vectors+288(SB), Z23

// EXP2 computes Exp2 of the lanes of V0, in V2; it overwrites V0 to V6. VMAXPS and
// VMINPS return their first operand here if that is NaN.
#define EXP2 \
	VMAXPS V0, V14, V0 \
	VMINPS V0, V15, V0 \
	VADDPS EXP2_ROUND, V0, V1 \
	VSUBPS EXP2_ROUND, V1, V1 \
	VSUBPS V1, V0, V0 \
	VMULPS V0, V0, V4 \
	VMULPS EXP2_2, V0, V5 \
	VMULPS EXP2_4, V0, V6 \
	VMULPS EXP2_6, V0, V2 \
	VADDPS EXP2_1, V5, V5 \
	VADDPS EXP2_3, V6, V6 \
	VADDPS EXP2_5, V2, V2 \
	VMULPS V4, V2, V2 \
	VADDPS V6, V2, V2 \
	VMULPS V4, V2, V2 \
	VADDPS V5, V2, V2 \
	VMULPS V0, V2, V2 \
	VADDPS EXP2_ONE, V2, V2 \
	EXP_SCALE

// A kernel processes R10 rows. R8 points to the row, R9 is the step between rows, and R11
// points to the row's number of visible scores. SI moves through the row: up to DI all
// sixteen scores of a group are visible; DX is the end. CX is how many scores from DI on
// are visible, and BX points to the mask for them.

#define BEGIN_ROW \
	MOVQ (R11), CX \
	MOVQ CX, DI \
	ANDQ $15, CX \
	SUBQ CX, DI \
	LEAQ (R8)(DI*4), DI \
	LEAQ ·firstLanes+64(SB), BX \
	MOVQ CX, AX \
	NEGQ AX \
	LEAQ (BX)(AX*4), BX \
	MOVQ R8, SI

#define END_ROW(row) \
	ADDQ $8, R11 \
	ADDQ R9, R8 \
	DECQ R10 \
	JNZ row \
	VZEROUPPER \
	RET

// VISIBLE_MAX folds a vector of visible scores into max. VMAXPS ignores a NaN in memory.
#define VISIBLE_MAX(at, max) \
	VMOVUPS at(SI), V0 \
	VMAXPS max, V0, max

// HIDDEN_MAX replaces hidden scores by minus infinity, in V11.
#define HIDDEN_MAX(at, max) \
	VMOVUPS at(BX), V1 \
	VANDPS at(SI), V1, V0 \
	VANDNPS V11, V1, V1 \
	VORPS V1, V0, V0 \
	VMAXPS max, V0, max

#define MAX_ROWS \
	MOVQ top+0(FP), R12 \
	MOVQ scores+8(FP), R8 \
	MOVQ ld+16(FP), R9 \
	MOVQ rows+24(FP), R10 \
	MOVQ visible+32(FP), R11 \
	SHLQ $2, R9 \
	MOVL $0xff800000, AX \
	MOVQ AX, X11 \
	VBROADCASTSS X11, V11 \
row: \
	BEGIN_ROW \
	VMOVAPS V11, V12 \
	VMOVAPS V11, V13 \
	JMP next \
loop: \
	SIXTEEN(VISIBLE_MAX) \
	ADDQ $64, SI \
next: \
	CMPQ SI, DI \
	JB loop \
	TESTQ CX, CX \
	JZ fold \
	SIXTEEN(HIDDEN_MAX) \
fold: \
	FOLD(VMAXPS, VMAXSS) \
	VMOVSS X0, (R12) \
	ADDQ $4, R12 \
	END_ROW(row)

// WEIGHT computes 2^(V0·scale − largest) in V2.
#define WEIGHT \
	VMULPS V10, V0, V0 \
	VSUBPS V11, V0, V0 \
	EXP2

#define VISIBLE_WEIGHT(at, sum) \
	VMOVUPS at(SI), V0 \
	WEIGHT \
	VMOVUPS V2, at(SI) \
	VADDPS V2, sum, sum

// HIDDEN_WEIGHT replaces hidden scores by 0 before WEIGHT: a power that underflows takes
// ten times as long as others.
#define HIDDEN_WEIGHT(at, sum) \
	VMOVUPS at(BX), V7 \
	VANDPS at(SI), V7, V0 \
	WEIGHT \
	VANDPS V7, V2, V2 \
	VMOVUPS V2, at(SI) \
	VADDPS V2, sum, sum

#define ZERO(at, sum) \
	VMOVUPS V2, at(SI)

#define WEIGH_ROWS \
	MOVQ scores+0(FP), R8 \
	MOVQ ld+8(FP), R9 \
	MOVQ rows+16(FP), R10 \
	MOVQ width+24(FP), DX \
	MOVQ visible+32(FP), R11 \
	VBROADCASTSS scale+40(FP), V10 \
	MOVQ largest+48(FP), R12 \
	MOVQ total+56(FP), R13 \
	LEAQ (R8)(DX*4), DX \
	SHLQ $2, R9 \
	EXP2_SETUP \
row: \
	BEGIN_ROW \
	VBROADCASTSS (R12), V11 \
	VXORPS X12, X12, X12 \
	VXORPS X13, X13, X13 \
	JMP next \
loop: \
	SIXTEEN(VISIBLE_WEIGHT) \
	ADDQ $64, SI \
next: \
	CMPQ SI, DI \
	JB loop \
	TESTQ CX, CX \
	JZ beyond \
	SIXTEEN(HIDDEN_WEIGHT) \
	ADDQ $64, SI \
beyond: \
	VXORPS X2, X2, X2 \
	JMP more \
zero: \
	SIXTEEN(ZERO) \
	ADDQ $64, SI \
more: \
	CMPQ SI, DX \
	JB zero \
	FOLD(VADDPS, VADDSS) \
	VADDSS (R13), X0, X0 \
	VMOVSS X0, (R13) \
	ADDQ $4, R12 \
	ADDQ $4, R13 \
	ADDQ R9, DX \
	END_ROW(row)

// GRADIENT computes ds in V2 from the probability in V2.
#define GRADIENT(at) \
	VMOVUPS at(R13)(SI*1), V0 \
	VSUBPS V12, V0, V0 \
	VMULPS V0, V2, V2 \
	VMULPS V9, V2, V2

#define VISIBLE_GRADIENT(at, _) \
	VMOVUPS at(SI), V0 \
	WEIGHT \
	VMOVUPS V2, at(SI) \
	GRADIENT(at) \
	VMOVUPS V2, at(R13)(SI*1)

#define HIDDEN_GRADIENT(at, _) \
	VMOVUPS at(BX), V7 \
	VANDPS at(SI), V7, V0 \
	WEIGHT \
	VANDPS V7, V2, V8 \
	VMOVUPS V8, at(SI) \
	GRADIENT(at) \
	VANDPS V7, V2, V2 \
	VMOVUPS V2, at(R13)(SI*1)

#define ZERO_BOTH(at, _) \
	VMOVUPS V2, at(SI) \
	VMOVUPS V2, at(R13)(SI*1)

// R13 is the offset from p to ds.
#define SCORE_GRADIENT_ROWS \
	MOVQ p+0(FP), R8 \
	MOVQ ds+8(FP), R13 \
	MOVQ ld+16(FP), R9 \
	MOVQ rows+24(FP), R10 \
	MOVQ width+32(FP), DX \
	MOVQ visible+40(FP), R11 \
	VBROADCASTSS scale2+48(FP), V10 \
	VBROADCASTSS scale+52(FP), V9 \
	MOVQ lse2+56(FP), R12 \
	SUBQ R8, R13 \
	LEAQ (R8)(DX*4), DX \
	SHLQ $2, R9 \
	EXP2_SETUP \
row: \
	BEGIN_ROW \
	VBROADCASTSS (R12), V11 \
	MOVQ delta+64(FP), AX \
	VBROADCASTSS (AX), V12 \
	JMP next \
loop: \
	SIXTEEN(VISIBLE_GRADIENT) \
	ADDQ $64, SI \
next: \
	CMPQ SI, DI \
	JB loop \
	TESTQ CX, CX \
	JZ beyond \
	SIXTEEN(HIDDEN_GRADIENT) \
	ADDQ $64, SI \
beyond: \
	VXORPS X2, X2, X2 \
	JMP more \
zero: \
	SIXTEEN(ZERO_BOTH) \
	ADDQ $64, SI \
more: \
	CMPQ SI, DX \
	JB zero \
	ADDQ $4, R12 \
	ADDQ $4, delta+64(FP) \
	ADDQ R9, DX \
	END_ROW(row)

// func maxRowsAVX512(top, scores *float32, ld, rows int, visible *int)
TEXT ·maxRowsAVX512(SB), NOSPLIT, $0-40
	MAX_ROWS

// func weighRowsAVX512(scores *float32, ld, rows, width int, visible *int, scale float32, largest, total *float32)
TEXT ·weighRowsAVX512(SB), NOSPLIT, $0-64
	WEIGH_ROWS

// func scoreGradientRowsAVX512(p, ds *float32, ld, rows, width int, visible *int, scale2, scale float32, lse2, delta *float32)
TEXT ·scoreGradientRowsAVX512(SB), NOSPLIT, $0-72
	SCORE_GRADIENT_ROWS

#include "ymm_amd64.h"

#undef EXP2_ROUND
#undef EXP2_1
#undef EXP2_2
#undef EXP2_3
#undef EXP2_4
#undef EXP2_5
#undef EXP2_6
#undef EXP2_ONE
#undef EXP2_SETUP
#define EXP2_ROUND ·exp2Vectors+64(SB)
#define EXP2_1 ·exp2Vectors+96(SB)
#define EXP2_2 ·exp2Vectors+128(SB)
#define EXP2_3 ·exp2Vectors+160(SB)
#define EXP2_4 ·exp2Vectors+192(SB)
#define EXP2_5 ·exp2Vectors+224(SB)
#define EXP2_6 ·exp2Vectors+256(SB)
#define EXP2_ONE ·exp2Vectors+288(SB)
#define EXP2_SETUP \
	VMOVUPS ·exp2Vectors+0(SB), Y14 \
	VMOVUPS ·exp2Vectors+32(SB), Y15

// func maxRowsAVX2(top, scores *float32, ld, rows int, visible *int)
TEXT ·maxRowsAVX2(SB), NOSPLIT, $0-40
	MAX_ROWS

// func weighRowsAVX2(scores *float32, ld, rows, width int, visible *int, scale float32, largest, total *float32)
TEXT ·weighRowsAVX2(SB), NOSPLIT, $0-64
	WEIGH_ROWS

// func scoreGradientRowsAVX2(p, ds *float32, ld, rows, width int, visible *int, scale2, scale float32, lse2, delta *float32)
TEXT ·scoreGradientRowsAVX2(SB), NOSPLIT, $0-72
	SCORE_GRADIENT_ROWS
