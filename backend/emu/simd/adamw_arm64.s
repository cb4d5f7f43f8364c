//go:build !noasm

#include "textflag.h"
#include "go_asm.h"
#include "neon_arm64.h"

// LARGEST folds |x| into top, a maximum of bits.
#define LARGEST(x, top) \
	VAND  V25.B16, x.B16, V7.B16 \
	VUMAX V7.S4, top.S4, top.S4

// KEEP computes kept(x).
#define KEEP(x) \
	VCMTST V29.S4, x.S4, V7.S4 \
	VAND   V7.B16, x.B16, x.B16

// V16-V24 hold the rule, in the order of its fields; V26-V28 the largest magnitudes of p,
// m and v, as bits.
//
// func adamWVectors(rule *AdamW, p, m, v, grad *float32, n int, lanes *[3][16]uint32)
TEXT ·adamWVectors(SB), NOSPLIT, $0-56
	MOVD rule+0(FP), R0
	MOVD p+8(FP), R1
	MOVD m+16(FP), R2
	MOVD v+24(FP), R3
	MOVD grad+32(FP), R4
	MOVD n+40(FP), R5
	MOVD lanes+48(FP), R6
	MOVWU AdamW_Coef(R0), R7
	VDUP  R7, V16.S4
	MOVWU AdamW_Beta1(R0), R7
	VDUP  R7, V17.S4
	MOVWU AdamW_Rest1(R0), R7
	VDUP  R7, V18.S4
	MOVWU AdamW_Beta2(R0), R7
	VDUP  R7, V19.S4
	MOVWU AdamW_Rest2(R0), R7
	VDUP  R7, V20.S4
	MOVWU AdamW_Decay(R0), R7
	VDUP  R7, V21.S4
	MOVWU AdamW_Rate(R0), R7
	VDUP  R7, V22.S4
	MOVWU AdamW_RootScale(R0), R7
	VDUP  R7, V23.S4
	MOVWU AdamW_Epsilon(R0), R7
	VDUP  R7, V24.S4
	MOVD $0x7fffffff, R7
	VDUP R7, V25.S4
	MOVWU AdamW_Keep(R0), R7
	VDUP  R7, V29.S4
	VEOR V26.B16, V26.B16, V26.B16
	VEOR V27.B16, V27.B16, V27.B16
	VEOR V28.B16, V28.B16, V28.B16

loop:
	VLD1.P 16(R4), [V0.S4]
	VLD1   (R2), [V1.S4]
	VLD1   (R3), [V2.S4]
	VLD1   (R1), [V3.S4]
	VFMUL(16, 0, 0)
	VFMUL(17, 1, 1)
	VFMUL(18, 0, 4)
	VFADD(4, 1, 1)
	KEEP(V1)
	VFMUL(0, 0, 0)
	VFMUL(20, 0, 0)
	VFMUL(19, 2, 2)
	VFADD(0, 2, 2)
	KEEP(V2)
	VST1.P [V1.S4], 16(R2)
	VST1.P [V2.S4], 16(R3)
	LARGEST(V1, V27)
	LARGEST(V2, V28)
	VFSQRT(2, 2)
	VFMUL(23, 2, 2)
	VFADD(24, 2, 2)
	VFDIV(2, 1, 1)
	VFMUL(22, 1, 1)
	VFMUL(21, 3, 3)
	VFSUB(1, 3, 3)
	VST1.P [V3.S4], 16(R1)
	LARGEST(V3, V26)
	SUBS   $4, R5
	BNE    loop

	VST1 [V26.S4], (R6)
	ADD  $64, R6
	VST1 [V27.S4], (R6)
	ADD  $64, R6
	VST1 [V28.S4], (R6)
	RET
