//go:build !noasm

#include "textflag.h"
#include "zmm_amd64.h"
#include "exp_amd64.h"

#define SETUP \
	EXP_SETUP \
	VXORPS V12, V12, V12 \
	VMOVUPS ONE, V13

// SIGMOID is s = 1/(1 + e^−gate) in V2, with the gate in V4.
#define SIGMOID \
	VMOVUPS (DX)(AX*1), V4 \
	VSUBPS V4, V12, V0 \
	EXP \
	VADDPS V13, V2, V2 \
	VDIVPS V2, V13, V2

#define PRODUCT_VECTOR \
	SIGMOID \
	VMULPS V4, V2, V2 \
	VMULPS (SI)(AX*1), V2, V2 \
	VMOVUPS V2, (DI)(AX*1)

// GRADIENT_VECTOR has d in V5, and in V7 what becomes d·up·(s·(1 + gate·(1−s))).
#define GRADIENT_VECTOR \
	SIGMOID \
	VMOVUPS (BX)(AX*1), V5 \
	VMULPS V4, V2, V6 \
	VMULPS V5, V6, V6 \
	VMULPS (SI)(AX*1), V5, V5 \
	VSUBPS V2, V13, V7 \
	VMULPS V4, V7, V7 \
	VADDPS V13, V7, V7 \
	VMULPS V2, V7, V7 \
	VMULPS V5, V7, V7 \
	VMOVUPS V6, (DI)(AX*1) \
	VMOVUPS V7, (R8)(AX*1)

#define GATED_PRODUCT \
	MOVQ dst+0(FP), DI \
	MOVQ up+8(FP), SI \
	MOVQ gate+16(FP), DX \
	MOVQ n+24(FP), CX \
	SETUP \
	LOOP(PRODUCT_VECTOR) \
	VZEROUPPER \
	RET

#define GATED_GRADIENT \
	MOVQ du+0(FP), DI \
	MOVQ dg+8(FP), R8 \
	MOVQ da+16(FP), BX \
	MOVQ up+24(FP), SI \
	MOVQ gate+32(FP), DX \
	MOVQ n+40(FP), CX \
	SETUP \
	LOOP(GRADIENT_VECTOR) \
	VZEROUPPER \
	RET

// func gatedProductAVX512(dst, up, gate *float32, n int)
TEXT ·gatedProductAVX512(SB), NOSPLIT, $0-32
	GATED_PRODUCT

// func gatedGradientAVX512(du, dg, da, up, gate *float32, n int)
TEXT ·gatedGradientAVX512(SB), NOSPLIT, $0-48
	GATED_GRADIENT

#include "ymm_amd64.h"

// func gatedProductAVX2(dst, up, gate *float32, n int)
TEXT ·gatedProductAVX2(SB), NOSPLIT, $0-32
	GATED_PRODUCT

// func gatedGradientAVX2(du, dg, da, up, gate *float32, n int)
TEXT ·gatedGradientAVX2(SB), NOSPLIT, $0-48
	GATED_GRADIENT
