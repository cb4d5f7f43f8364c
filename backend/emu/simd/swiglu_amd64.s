//go:build !noasm

#include "textflag.h"
#include "zmm_amd64.h"
#include "powers_amd64.h"

#define POWER_TABLE ·expConstants

#define SETUP \
	VXORPS V12, V12, V12 \
	CONSTANT(·expConstants, 13, V13)

#define MINUS_GATE(at, x, n, p, lanes) \
	VSUBPS at(DX)(AX*1), V12, x

// SIGMOID computes s = 1/(1 + e^−gate) from the power.
#define SIGMOID(p) \
	VADDPS V13, p, p \
	VDIVPS p, V13, p

#define PRODUCT(at, x, n, p, lanes) \
	SIGMOID(p) \
	VMULPS at(DX)(AX*1), p, p \
	VMULPS at(SI)(AX*1), p, p \
	VMOVUPS p, at(DI)(AX*1)

// GRADIENTS computes du = da·(gate·s) in x and dg = da·up·(s·(1 + gate·(1−s))) in V14.
#define GRADIENTS(at, x, n, p, lanes) \
	SIGMOID(p) \
	VMOVUPS at(BX)(AX*1), n \
	VMULPS at(DX)(AX*1), p, x \
	VMULPS n, x, x \
	VMULPS at(SI)(AX*1), n, n \
	VSUBPS p, V13, V14 \
	VMULPS at(DX)(AX*1), V14, V14 \
	VADDPS V13, V14, V14 \
	VMULPS p, V14, V14 \
	VMULPS n, V14, V14 \
	VMOVUPS x, at(DI)(AX*1) \
	VMOVUPS V14, at(R8)(AX*1)

// FOUR_OF and GROUP_OF compute do, PRODUCT or GRADIENTS, from the powers.
#define FOUR_OF(do) \
	FOUR(MINUS_GATE) \
	POWERS_OF_FOUR(EXP) \
	FOUR(do)

#define GROUP_OF(do) \
	GROUP(MINUS_GATE) \
	POWERS(EXP, GROUP) \
	GROUP(do)

#define MUL_SILU \
	MOVQ dst+0(FP), DI \
	MOVQ up+8(FP), SI \
	MOVQ gate+16(FP), DX \
	MOVQ n+24(FP), CX \
	SETUP \
	POWER_LOOP(FOUR_OF(PRODUCT), GROUP_OF(PRODUCT)) \
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
	POWER_LOOP(FOUR_OF(GRADIENTS), GROUP_OF(GRADIENTS)) \
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
