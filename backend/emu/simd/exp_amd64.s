//go:build !noasm

#include "textflag.h"
#include "zmm_amd64.h"
#include "powers_amd64.h"

#define POWER_TABLE ·expConstants

#define ARGUMENT(at, x, n, p, lanes) \
	VMULPS at(SI)(AX*1), V14, x \
	VSUBPS V15, x, x

#define RESULT(at, x, n, p, lanes) \
	VMOVUPS p, at(DI)(AX*1) \
	VADDPS p, lanes, lanes

#define BEFORE \
	VBROADCASTSS scale+32(FP), V14 \
	VBROADCASTSS shift+36(FP), V15

#define EXP_FOUR \
	BEFORE \
	FOUR(ARGUMENT) \
	POWERS_OF_FOUR(EXP) \
	FOUR(RESULT)

#define EXP_GROUP \
	BEFORE \
	GROUP(ARGUMENT) \
	POWERS(EXP, GROUP) \
	GROUP(RESULT)

#define EXP_LANES \
	MOVQ lanes+0(FP), BX \
	MOVQ dst+8(FP), DI \
	MOVQ x+16(FP), SI \
	MOVQ n+24(FP), CX \
	VXORPS V12, V12, V12 \
	VXORPS V13, V13, V13 \
	POWER_LOOP(EXP_FOUR, EXP_GROUP) \
	SIXTEEN(STORE_LANES) \
	FOLD(VADDPS, VADDSS) \
	VZEROUPPER \
	MOVSS X0, ret+40(FP) \
	RET

#define STORE_LANES(at, lanes) \
	VMOVUPS lanes, at(BX)

// MAX_OF folds a vector into max. VMAXPS ignores a NaN in memory.
#define MAX_OF(at, max) \
	VMOVUPS at(SI), V0 \
	VMAXPS max, V0, max

// MAX computes four independent maxima, of four vectors per iteration, then includes the
// remaining vectors, sixteen elements at a time. AX is -Inf.
#define MAX \
	MOVQ x+0(FP), SI \
	MOVQ n+8(FP), CX \
	MOVL $0xff800000, AX \
	MOVQ AX, X12 \
	VBROADCASTSS X12, V12 \
	VMOVAPS V12, V13 \
	VMOVAPS V12, V14 \
	VMOVAPS V12, V15 \
	LEAQ (SI)(CX*4), CX \
	LEAQ (-4*WIDTH)(CX), DX \
	JMP more \
four: \
	MAX_OF(0, V12) \
	MAX_OF(WIDTH, V13) \
	MAX_OF((2*WIDTH), V14) \
	MAX_OF((3*WIDTH), V15) \
	ADDQ $(4*WIDTH), SI \
more: \
	CMPQ SI, DX \
	JLS four \
	VMAXPS V15, V13, V13 \
	VMAXPS V14, V12, V12 \
	VMAXPS V13, V12, V12 \
	JMP rest \
sixteen: \
	SIXTEEN(MAX_OF) \
	ADDQ $64, SI \
rest: \
	CMPQ SI, CX \
	JB sixteen \
	FOLD(VMAXPS, VMAXSS) \
	VZEROUPPER \
	MOVSS X0, ret+16(FP) \
	RET

// func expLanesVectors(lanes *[16]float32, dst, x *float32, n int, scale, shift float32) float32
TEXT ·expLanesVectors(SB), NOSPLIT, $0-44
	WIDEST(·expLanesAVX512<>(SB), ·expLanesAVX2<>(SB))

// func maxVectors(x *float32, n int) float32
TEXT ·maxVectors(SB), NOSPLIT, $0-20
	WIDEST(·maxAVX512<>(SB), ·maxAVX2<>(SB))

TEXT ·expLanesAVX512<>(SB), NOSPLIT, $0-44
	EXP_LANES

TEXT ·maxAVX512<>(SB), NOSPLIT, $0-20
	MAX

#include "ymm_amd64.h"

TEXT ·expLanesAVX2<>(SB), NOSPLIT, $0-44
	EXP_LANES

TEXT ·maxAVX2<>(SB), NOSPLIT, $0-20
	MAX
