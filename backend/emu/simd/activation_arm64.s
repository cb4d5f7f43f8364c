//go:build !noasm

#include "textflag.h"
#include "neon_arm64.h"

// func reluVectors(dst, x *float32, n int)
TEXT ·reluVectors(SB), NOSPLIT, $0-24
	MOVD dst+0(FP), R0
	MOVD x+8(FP), R1
	MOVD n+16(FP), R2
	VEOR V2.B16, V2.B16, V2.B16

loop:
	VLD1.P 16(R1), [V0.S4]
	VFCMGT(0, 2, 1)
	VBIT   V1.B16, V2.B16, V0.B16
	VST1.P [V0.S4], 16(R0)
	SUBS   $4, R2
	BNE    loop
	RET

// func reluGradientVectors(dx, x, dy *float32, n int)
TEXT ·reluGradientVectors(SB), NOSPLIT, $0-32
	MOVD dx+0(FP), R0
	MOVD x+8(FP), R1
	MOVD dy+16(FP), R2
	MOVD n+24(FP), R3
	VEOR V2.B16, V2.B16, V2.B16

loop:
	VLD1.P 16(R1), [V0.S4]
	VLD1.P 16(R2), [V3.S4]
	VFCMGE(0, 2, 1)
	VBIT   V1.B16, V2.B16, V3.B16
	VST1.P [V3.S4], 16(R0)
	SUBS   $4, R3
	BNE    loop
	RET
