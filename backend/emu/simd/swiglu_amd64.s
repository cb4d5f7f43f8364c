//go:build !noasm

#include "textflag.h"
#include "zmm_amd64.h"
#include "exp_amd64.h"

#define SETUP \
	EXP_SETUP \
	VXORPS V12, V12, V12 \
	VMOVUPS ONE, V13

// SIGMOID loads gate into V4 and computes s = 1/(1 + e^−gate) in V2.
#define SIGMOID \
	VMOVUPS (DX)(AX*1), V4 \
	VSUBPS V4, V12, V0 \
	EXP \
	VADDPS V13, V2, V2 \
	VDIVPS V2, V13, V2

#define MUL_SILU_VECTOR \
	SIGMOID \
	VMULPS V4, V2, V2 \
	VMULPS (SI)(AX*1), V2, V2 \
	VMOVUPS V2, (DI)(AX*1)

// GRADIENT_VECTOR computes du = da·(gate·s) in V6 and dg = da·up·(s·(1 + gate·(1−s))) in
// V7.
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

#define MUL_SILU \
	MOVQ dst+0(FP), DI \
	MOVQ up+8(FP), SI \
	MOVQ gate+16(FP), DX \
	MOVQ n+24(FP), CX \
	SETUP \
	LOOP(MUL_SILU_VECTOR) \
	VZEROUPPER \
	RET

#define MUL_SILU_GRADIENT \
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

// func mulSiLUVectors(dst, up, gate *float32, n int)
TEXT ·mulSiLUVectors(SB), NOSPLIT, $0-32
	WIDEST(·mulSiLUAVX512<>(SB), ·mulSiLUAVX2<>(SB))

// func mulSiLUGradientVectors(du, dg, da, up, gate *float32, n int)
TEXT ·mulSiLUGradientVectors(SB), NOSPLIT, $0-48
	WIDEST(·mulSiLUGradientAVX512<>(SB), ·mulSiLUGradientAVX2<>(SB))

TEXT ·mulSiLUAVX512<>(SB), NOSPLIT, $0-32
	MUL_SILU

TEXT ·mulSiLUGradientAVX512<>(SB), NOSPLIT, $0-48
	MUL_SILU_GRADIENT

#include "ymm_amd64.h"

TEXT ·mulSiLUAVX2<>(SB), NOSPLIT, $0-32
	MUL_SILU

TEXT ·mulSiLUGradientAVX2<>(SB), NOSPLIT, $0-48
	MUL_SILU_GRADIENT
