//go:build !noasm

#include "textflag.h"
#include "neon_arm64.h"
#include "exp_arm64.h"

#define EXP2_SETUP(r) \
	MOVD    $·exp2Constants(SB), r \
	VLD1R.P 4(r), [V16.S4] \
	VLD1R.P 4(r), [V17.S4] \
	ADD     $4, r \
	VLD1R.P 4(r), [V18.S4] \
	VLD1R.P 4(r), [V24.S4] \
	VLD1R.P 4(r), [V23.S4] \
	VLD1R.P 4(r), [V25.S4] \
	VLD1R.P 4(r), [V19.S4] \
	VLD1R.P 4(r), [V20.S4] \
	VLD1R.P 4(r), [V21.S4] \
	VLD1R.P 4(r), [V22.S4] \
	MOVD    $254, r \
	VDUP    r, V29.S4 \
	VSUB    V29.S4, V18.S4, V29.S4

// EXP2 computes Exp2 of the lanes of V0, in V1; it overwrites V0 and V2-V5.
#define EXP2 \
	VFMAX(16, 0, 0) \
	VFMIN(17, 0, 0) \
	VFADD(18, 0, 2) \
	VFSUB(18, 2, 3) \
	VFSUB(3, 0, 0) \
	VFMUL(0, 0, 3) \
	VFMUL(24, 0, 1) \
	VFMUL(22, 0, 4) \
	VFMUL(20, 0, 5) \
	VFADD(23, 1, 1) \
	VFADD(21, 4, 4) \
	VFADD(19, 5, 5) \
	VFMUL(3, 1, 1) \
	VFADD(4, 1, 1) \
	VFMUL(3, 1, 1) \
	VFADD(5, 1, 1) \
	VFMUL(0, 1, 1) \
	VFADD(25, 1, 1) \
	TIMES_POWER

// WEIGH replaces four scores by weights and adds them to the lanes in sum. V30 is the
// scale, V31 the largest score, scaled.
#define WEIGH(sum) \
	VLD1 (R1), [V0.S4] \
	VFMUL(30, 0, 0) \
	VFSUB(31, 0, 0) \
	EXP2 \
	VFADD(1, sum, sum) \
	VST1.P [V1.S4], 16(R1)

// func weighRow(lanes *[16]float32, row *float32, n int, scale, largest float32)
TEXT ·weighRow(SB), NOSPLIT, $0-32
	MOVD  lanes+0(FP), R0
	MOVD  row+8(FP), R1
	MOVD  n+16(FP), R2
	MOVWU scale+24(FP), R3
	VDUP  R3, V30.S4
	MOVWU largest+28(FP), R3
	VDUP  R3, V31.S4
	EXP2_SETUP(R3)
	VEOR  V6.B16, V6.B16, V6.B16
	VEOR  V7.B16, V7.B16, V7.B16
	VEOR  V8.B16, V8.B16, V8.B16
	VEOR  V9.B16, V9.B16, V9.B16

loop:
	WEIGH(6)
	WEIGH(7)
	WEIGH(8)
	WEIGH(9)
	SUBS $16, R2
	BNE  loop

	VST1 [V6.S4, V7.S4, V8.S4, V9.S4], (R0)
	RET

// func scoreGradientRow(p, ds *float32, n int, scale2, scale, lse2, delta float32)
TEXT ·scoreGradientRow(SB), NOSPLIT, $0-40
	MOVD  p+0(FP), R0
	MOVD  ds+8(FP), R1
	MOVD  n+16(FP), R2
	MOVWU scale2+24(FP), R3
	VDUP  R3, V30.S4
	MOVWU scale+28(FP), R3
	VDUP  R3, V28.S4
	MOVWU lse2+32(FP), R3
	VDUP  R3, V31.S4
	MOVWU delta+36(FP), R3
	VDUP  R3, V27.S4
	EXP2_SETUP(R3)

loop:
	VLD1   (R0), [V0.S4]
	VFMUL(30, 0, 0)
	VFSUB(31, 0, 0)
	EXP2
	VST1.P [V1.S4], 16(R0)
	VLD1   (R1), [V4.S4]
	VFSUB(27, 4, 4)
	VFMUL(4, 1, 1)
	VFMUL(28, 1, 1)
	VST1.P [V1.S4], 16(R1)
	SUBS   $4, R2
	BNE    loop
	RET
