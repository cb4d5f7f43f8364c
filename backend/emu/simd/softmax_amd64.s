//go:build !noasm

#include "textflag.h"
#include "zmm_amd64.h"
#include "powers_amd64.h"

#define POWER_TABLE ·exp2Constants

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
	VMOVAPS V11, V14 \
	VMOVAPS V11, V15 \
	JMP next \
loop: \
	THIRTYTWO(VISIBLE_MAX) \
	ADDQ $128, SI \
next: \
	LEAQ 128(SI), AX \
	CMPQ AX, DI \
	JLS loop \
	CMPQ SI, DI \
	JCC hidden \
	SIXTEEN(VISIBLE_MAX) \
	ADDQ $64, SI \
hidden: \
	TESTQ CX, CX \
	JZ fold \
	SIXTEEN(HIDDEN_MAX) \
fold: \
	HALVE_LANES(VMAXPS) \
	FOLD(VMAXPS, VMAXSS) \
	VMOVSS X0, (R12) \
	ADDQ $4, R12 \
	END_ROW(row)

// ARGUMENT computes score·scale − largest, with the scale in V14 and the largest in V15.
// HIDDEN_ARGUMENT replaces hidden scores by 0 before: a power that underflows takes ten
// times as long as others.
#define ARGUMENT(at, x, n, p, lanes) \
	VMULPS at(SI), V14, x \
	VSUBPS V15, x, x
#define HIDDEN_ARGUMENT(at, x, n, p, lanes) \
	VMOVUPS at(BX), x \
	VANDPS at(SI), x, x \
	VMULPS V14, x, x \
	VSUBPS V15, x, x

// VISIBLE computes the powers of a row's visible scores: of FOUR vectors as long as there are
// as many, of GROUP, then of the group with the last of them. before sets V14 and V15 for
// the arguments; do and doHidden use the powers.
#define VISIBLE(before, do, doHidden) \
	JMP next \
fours: \
	before \
	FOUR(ARGUMENT) \
	POWERS_OF_FOUR(EXP2) \
	do(FOUR) \
	ADDQ $(4*WIDTH), SI \
next: \
	LEAQ (4*WIDTH)(SI), AX \
	CMPQ AX, DI \
	JLS fours \
	JMP rest \
sixteen: \
	before \
	GROUP(ARGUMENT) \
	POWERS(EXP2, GROUP) \
	do(GROUP) \
	ADDQ $64, SI \
rest: \
	CMPQ SI, DI \
	JB sixteen \
	TESTQ CX, CX \
	JZ beyond \
	before \
	GROUP(HIDDEN_ARGUMENT) \
	POWERS(EXP2, GROUP) \
	doHidden(GROUP) \
	ADDQ $64, SI \
beyond:

// ZEROS sets the rest of a row to zero.
#define ZEROS(zeros) \
	VXORPS X2, X2, X2 \
	JMP more \
zero: \
	SIXTEEN(zeros) \
	ADDQ $64, SI \
more: \
	CMPQ SI, DX \
	JB zero

#define WEIGHT(at, x, n, p, lanes) \
	VMOVUPS p, at(SI) \
	VADDPS p, lanes, lanes
#define HIDDEN_WEIGHT(at, x, n, p, lanes) \
	VANDPS at(BX), p, p \
	WEIGHT(at, x, n, p, lanes)

#define ZERO(at, sum) \
	VMOVUPS V2, at(SI)

#define BEFORE_WEIGHTS \
	VBROADCASTSS scale+40(FP), V14 \
	VBROADCASTSS (R12), V15
#define WEIGHTS(vectors) vectors(WEIGHT)
#define HIDDEN_WEIGHTS(vectors) vectors(HIDDEN_WEIGHT)

#define WEIGH_ROWS(weights, hiddenWeights, zeros) \
	MOVQ scores+0(FP), R8 \
	MOVQ ld+8(FP), R9 \
	MOVQ rows+16(FP), R10 \
	MOVQ width+24(FP), DX \
	MOVQ visible+32(FP), R11 \
	MOVQ largest+48(FP), R12 \
	MOVQ total+56(FP), R13 \
	LEAQ (R8)(DX*4), DX \
	SHLQ $2, R9 \
	EXP2_SETUP \
row: \
	BEGIN_ROW \
	VXORPS X12, X12, X12 \
	VXORPS X13, X13, X13 \
	VISIBLE(BEFORE_WEIGHTS, weights, hiddenWeights) \
	ZEROS(zeros) \
	FOLD(VADDPS, VADDSS) \
	VADDSS (R13), X0, X0 \
	VMOVSS X0, (R13) \
	ADDQ $4, R12 \
	ADDQ $4, R13 \
	ADDQ R9, DX \
	END_ROW(row)

// GRADIENT computes ds from the probability in p, in p, with scale in V14 and delta in V15.
#define GRADIENT(at, x, p) \
	VMOVUPS at(R13)(SI*1), x \
	VSUBPS V15, x, x \
	VMULPS x, p, p \
	VMULPS V14, p, p

#define PROBABILITY(at, x, n, p, lanes) \
	VMOVUPS p, at(SI) \
	GRADIENT(at, x, p) \
	VMOVUPS p, at(R13)(SI*1)
#define HIDDEN_PROBABILITY(at, x, n, p, lanes) \
	VANDPS at(BX), p, x \
	VMOVUPS x, at(SI) \
	GRADIENT(at, x, p) \
	VANDPS at(BX), p, p \
	VMOVUPS p, at(R13)(SI*1)

#define BEFORE_PROBABILITIES \
	VBROADCASTSS scale2+48(FP), V14 \
	VBROADCASTSS (R12), V15
#define BEFORE_GRADIENTS \
	VBROADCASTSS scale+52(FP), V14 \
	VBROADCASTSS (R14), V15
#define PROBABILITIES(vectors) \
	BEFORE_GRADIENTS \
	vectors(PROBABILITY)
#define HIDDEN_PROBABILITIES(vectors) \
	BEFORE_GRADIENTS \
	vectors(HIDDEN_PROBABILITY)

#define ZERO_BOTH(at, _) \
	VMOVUPS V2, at(SI) \
	VMOVUPS V2, at(R13)(SI*1)

// R13 is the offset from p to ds.
#define SCORE_GRADIENT_ROWS(probabilities, hiddenProbabilities, zeros) \
	MOVQ p+0(FP), R8 \
	MOVQ ds+8(FP), R13 \
	MOVQ ld+16(FP), R9 \
	MOVQ rows+24(FP), R10 \
	MOVQ width+32(FP), DX \
	MOVQ visible+40(FP), R11 \
	MOVQ lse2+56(FP), R12 \
	MOVQ delta+64(FP), R14 \
	SUBQ R8, R13 \
	LEAQ (R8)(DX*4), DX \
	SHLQ $2, R9 \
	EXP2_SETUP \
row: \
	BEGIN_ROW \
	VISIBLE(BEFORE_PROBABILITIES, probabilities, hiddenProbabilities) \
	ZEROS(zeros) \
	ADDQ $4, R12 \
	ADDQ $4, R14 \
	ADDQ R9, DX \
	END_ROW(row)

// func maxRowsAVX512(top, scores *float32, ld, rows int, visible *int)
TEXT ·maxRowsAVX512(SB), NOSPLIT, $0-40
	MAX_ROWS

// func weighRowsAVX512(scores *float32, ld, rows, width int, visible *int, scale float32, largest, total *float32)
TEXT ·weighRowsAVX512(SB), NOSPLIT, $0-64
	WEIGH_ROWS(WEIGHTS, HIDDEN_WEIGHTS, ZERO)

// func scoreGradientRowsAVX512(p, ds *float32, ld, rows, width int, visible *int, scale2, scale float32, lse2, delta *float32)
TEXT ·scoreGradientRowsAVX512(SB), NOSPLIT, $0-72
	SCORE_GRADIENT_ROWS(PROBABILITIES, HIDDEN_PROBABILITIES, ZERO_BOTH)

// Rows of BF16 replace the scores from a row's beginning on.
#define BF16_CONSTANTS \
	MOVL $0x7fff, AX \
	VPBROADCASTD AX, Z21 \
	MOVL $1, AX \
	VPBROADCASTD AX, Z20

// BF16_PLACE sets AX to the place of the code of the score at (SI): halfway from R8 to SI.
#define BF16_PLACE \
	LEAQ (SI)(R8*1), AX \
	SHRQ $1, AX

// ROUND_BF16 rounds x to nearest even, in t: it adds 0x7fff plus the lowest kept bit, except to
// NaN.
#define ROUND_BF16(x, t) \
	VPSRLD $16, x, t \
	VPANDD Z20, t, t \
	VPADDD Z21, t, t \
	VPADDD x, t, t \
	VCMPPS $3, x, x, K1 \
	VMOVDQA32 x, K1, t \
	VPSRLD $16, t, t

#define WEIGHT_BF16(at, x, n, p, lanes) \
	VADDPS p, lanes, lanes \
	ROUND_BF16(p, x) \
	VPMOVDW x, (at/2)(AX)
#define HIDDEN_WEIGHT_BF16(at, x, n, p, lanes) \
	VANDPS at(BX), p, p \
	WEIGHT_BF16(at, x, n, p, lanes)
#define WEIGHTS_BF16(vectors) \
	BF16_PLACE \
	vectors(WEIGHT_BF16)
#define HIDDEN_WEIGHTS_BF16(vectors) \
	BF16_PLACE \
	vectors(HIDDEN_WEIGHT_BF16)
#define ZERO_BF16(at, _) \
	BF16_PLACE \
	VMOVDQU Y2, (AX)

#define PROBABILITY_BF16(at, x, n, p, lanes) \
	ROUND_BF16(p, n) \
	VPMOVDW n, (at/2)(AX) \
	GRADIENT(at, x, p) \
	ROUND_BF16(p, n) \
	VPMOVDW n, (at/2)(AX)(R13*1)
#define HIDDEN_PROBABILITY_BF16(at, x, n, p, lanes) \
	VANDPS at(BX), p, x \
	ROUND_BF16(x, n) \
	VPMOVDW n, (at/2)(AX) \
	GRADIENT(at, x, p) \
	VANDPS at(BX), p, p \
	ROUND_BF16(p, n) \
	VPMOVDW n, (at/2)(AX)(R13*1)
#define PROBABILITIES_BF16(vectors) \
	BEFORE_GRADIENTS \
	BF16_PLACE \
	vectors(PROBABILITY_BF16)
#define HIDDEN_PROBABILITIES_BF16(vectors) \
	BEFORE_GRADIENTS \
	BF16_PLACE \
	vectors(HIDDEN_PROBABILITY_BF16)
#define ZERO_BOTH_BF16(at, _) \
	BF16_PLACE \
	VMOVDQU Y2, (AX) \
	VMOVDQU Y2, (AX)(R13*1)

// func weighRowsBF16AVX512(scores *float32, ld, rows, width int, visible *int, scale float32, largest, total *float32)
TEXT ·weighRowsBF16AVX512(SB), NOSPLIT, $0-64
	BF16_CONSTANTS
	WEIGH_ROWS(WEIGHTS_BF16, HIDDEN_WEIGHTS_BF16, ZERO_BF16)

// func scoreGradientRowsBF16AVX512(p, ds *float32, ld, rows, width int, visible *int, scale2, scale float32, lse2, delta *float32)
TEXT ·scoreGradientRowsBF16AVX512(SB), NOSPLIT, $0-72
	BF16_CONSTANTS
	SCORE_GRADIENT_ROWS(PROBABILITIES_BF16, HIDDEN_PROBABILITIES_BF16, ZERO_BOTH_BF16)

#include "ymm_amd64.h"

// func maxRowsAVX2(top, scores *float32, ld, rows int, visible *int)
TEXT ·maxRowsAVX2(SB), NOSPLIT, $0-40
	MAX_ROWS

// func weighRowsAVX2(scores *float32, ld, rows, width int, visible *int, scale float32, largest, total *float32)
TEXT ·weighRowsAVX2(SB), NOSPLIT, $0-64
	WEIGH_ROWS(WEIGHTS, HIDDEN_WEIGHTS, ZERO)

// func scoreGradientRowsAVX2(p, ds *float32, ld, rows, width int, visible *int, scale2, scale float32, lse2, delta *float32)
TEXT ·scoreGradientRowsAVX2(SB), NOSPLIT, $0-72
	SCORE_GRADIENT_ROWS(PROBABILITIES, HIDDEN_PROBABILITIES, ZERO_BOTH)
