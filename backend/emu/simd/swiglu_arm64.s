//go:build !noasm

#include "textflag.h"
#include "neon_arm64.h"
#include "exp_arm64.h"

#define SETUP \
	EXP_SETUP(R7) \
	VEOR V30.B16, V30.B16, V30.B16

// SIGMOID loads gate into V4 and computes 1/(1 + e^−gate) in V1.
#define SIGMOID(r) \
	VLD1.P 16(r), [V4.S4] \
	VFSUB(4, 30, 0) \
	EXP4 \
	VFADD(28, 1, 1) \
	VFDIV(1, 28, 1)

// func mulSiLUVectors(dst, up, gate *float32, n int)
TEXT ·mulSiLUVectors(SB), NOSPLIT, $0-32
	MOVD dst+0(FP), R0
	MOVD up+8(FP), R1
	MOVD gate+16(FP), R2
	MOVD n+24(FP), R3
	SETUP

loop:
	SIGMOID(R2)
	VLD1.P 16(R1), [V5.S4]
	VFMUL(4, 1, 1)
	VFMUL(5, 1, 1)
	VST1.P [V1.S4], 16(R0)
	SUBS   $4, R3
	BNE    loop
	RET

// func mulSiLUGradientVectors(du, dg, da, up, gate *float32, n int)
TEXT ·mulSiLUGradientVectors(SB), NOSPLIT, $0-48
	MOVD du+0(FP), R0
	MOVD dg+8(FP), R4
	MOVD da+16(FP), R5
	MOVD up+24(FP), R1
	MOVD gate+32(FP), R2
	MOVD n+40(FP), R3
	SETUP

loop:
	SIGMOID(R2)
	VLD1.P 16(R1), [V5.S4]
	VLD1.P 16(R5), [V0.S4]
	VFMUL(4, 1, 6)
	VFMUL(0, 6, 6)
	VFMUL(0, 5, 5)
	VFSUB(1, 28, 7)
	VFMUL(4, 7, 7)
	VFADD(28, 7, 7)
	VFMUL(1, 7, 7)
	VFMUL(5, 7, 7)
	VST1.P [V6.S4], 16(R0)
	VST1.P [V7.S4], 16(R4)
	SUBS   $4, R3
	BNE    loop
	RET
