//go:build !noasm

#include "textflag.h"
#include "zmm_amd64.h"

// V12 is 0. PASS_POSITIVE differs between the two widths.

// RELU_VECTOR leaves NaN and −0 as they are.
#define RELU_VECTOR \
	VMOVUPS (SI)(AX*1), V0 \
	VMAXPS V0, V12, V0 \
	VMOVUPS V0, (DI)(AX*1)

#define RELU \
	MOVQ dst+0(FP), DI \
	MOVQ x+8(FP), SI \
	MOVQ n+16(FP), CX \
	VXORPS V12, V12, V12 \
	LOOP(RELU_VECTOR) \
	VZEROUPPER \
	RET

// PASS_POSITIVE sets V0, which holds x, to dy where x is not ≤ 0, and to 0 elsewhere.
#define RELU_GRADIENT_VECTOR \
	VMOVUPS (SI)(AX*1), V0 \
	PASS_POSITIVE \
	VMOVUPS V0, (DI)(AX*1)

#define RELU_GRADIENT \
	MOVQ dx+0(FP), DI \
	MOVQ x+8(FP), SI \
	MOVQ dy+16(FP), DX \
	MOVQ n+24(FP), CX \
	VXORPS V12, V12, V12 \
	LOOP(RELU_GRADIENT_VECTOR) \
	VZEROUPPER \
	RET

#define PASS_POSITIVE \
	VCMPPS $6, Z12, Z0, K1 \
	VMOVUPS.Z (DX)(AX*1), K1, Z0

// func reluVectors(dst, x *float32, n int)
TEXT ·reluVectors(SB), NOSPLIT, $0-24
	WIDEST(·reluAVX512<>(SB), ·reluAVX2<>(SB))

// func reluGradientVectors(dx, x, dy *float32, n int)
TEXT ·reluGradientVectors(SB), NOSPLIT, $0-32
	WIDEST(·reluGradientAVX512<>(SB), ·reluGradientAVX2<>(SB))

TEXT ·reluAVX512<>(SB), NOSPLIT, $0-24
	RELU

TEXT ·reluGradientAVX512<>(SB), NOSPLIT, $0-32
	RELU_GRADIENT

#include "ymm_amd64.h"

#undef PASS_POSITIVE
#define PASS_POSITIVE \
	VCMPPS $6, Y12, Y0, Y0 \
	VANDPS (DX)(AX*1), Y0, Y0

TEXT ·reluAVX2<>(SB), NOSPLIT, $0-24
	RELU

TEXT ·reluGradientAVX2<>(SB), NOSPLIT, $0-32
	RELU_GRADIENT
