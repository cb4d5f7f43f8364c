//go:build !noasm

#include "textflag.h"
#include "neon_arm64.h"
#include "exp_arm64.h"

// EXP_LANES computes four elements of ExpSum and adds them to the lanes in sum. V30 is
// the scale, V31 the shift.
#define EXP_LANES(sum) \
	VLD1.P 16(R1), [V0.S4] \
	VFMUL(30, 0, 0) \
	VFSUB(31, 0, 0) \
	EXP4 \
	VFADD(1, sum, sum) \
	VST1.P [V1.S4], 16(R0)

// func expLanesVectors(lanes *[16]float32, dst, x *float32, n int, scale, shift float32) float32
TEXT ·expLanesVectors(SB), NOSPLIT, $0-44
	MOVD  lanes+0(FP), R3
	MOVD  dst+8(FP), R0
	MOVD  x+16(FP), R1
	MOVD  n+24(FP), R2
	MOVWU scale+32(FP), R4
	VDUP  R4, V30.S4
	MOVWU shift+36(FP), R4
	VDUP  R4, V31.S4
	EXP_SETUP(R4)
	VEOR  V4.B16, V4.B16, V4.B16
	VEOR  V5.B16, V5.B16, V5.B16
	VEOR  V6.B16, V6.B16, V6.B16
	VEOR  V7.B16, V7.B16, V7.B16

loop:
	EXP_LANES(4)
	EXP_LANES(5)
	EXP_LANES(6)
	EXP_LANES(7)
	SUBS $16, R2
	BNE  loop

	VST1 [V4.S4, V5.S4, V6.S4, V7.S4], (R3)
	FOLD(V4, 4, 5, 6, 7)
	FMOVS F4, ret+40(FP)
	RET

// func maxVectors(x *float32, n int) float32
TEXT ·maxVectors(SB), NOSPLIT, $0-20
	MOVD x+0(FP), R0
	MOVD n+8(FP), R1
	MOVD $0xff800000, R2 // -Inf
	VDUP R2, V4.S4
	VDUP R2, V5.S4
	VDUP R2, V6.S4
	VDUP R2, V7.S4

loop:
	VLD1.P 64(R0), [V0.S4, V1.S4, V2.S4, V3.S4]
	VFCMGT(4, 0, 16)
	VFCMGT(5, 1, 17)
	VFCMGT(6, 2, 18)
	VFCMGT(7, 3, 19)
	VBIT   V16.B16, V0.B16, V4.B16
	VBIT   V17.B16, V1.B16, V5.B16
	VBIT   V18.B16, V2.B16, V6.B16
	VBIT   V19.B16, V3.B16, V7.B16
	SUBS   $16, R1
	BNE    loop

	VFMAX(5, 4, 4)
	VFMAX(7, 6, 6)
	VFMAX(6, 4, 4)
	VFMAXV(4, 4)
	FMOVS F4, ret+16(FP)
	RET
