//go:build !noasm

#include "textflag.h"
#include "neon_arm64.h"

// SQUARES adds the squares of the next four elements to two vectors of lanes.
#define SQUARES(x, a, b) \
	VFCVTLD(x, 4) \
	VFCVTL2D(x, 5) \
	VFMLA V4.D2, V4.D2, a.D2 \
	VFMLA V5.D2, V5.D2, b.D2

// The lanes are V16-V31.
//
// func squareLanesNEON(lanes *[32]float64, x *float32, n int)
TEXT ·squareLanesNEON(SB), NOSPLIT, $0-24
	MOVD   lanes+0(FP), R0
	MOVD   x+8(FP), R1
	MOVD   n+16(FP), R2
	MOVD   R0, R3
	VLD1.P 64(R3), [V16.D2, V17.D2, V18.D2, V19.D2]
	VLD1.P 64(R3), [V20.D2, V21.D2, V22.D2, V23.D2]
	VLD1.P 64(R3), [V24.D2, V25.D2, V26.D2, V27.D2]
	VLD1   (R3), [V28.D2, V29.D2, V30.D2, V31.D2]

loop:
	VLD1.P 64(R1), [V0.S4, V1.S4, V2.S4, V3.S4]
	SQUARES(0, V16, V17)
	SQUARES(1, V18, V19)
	SQUARES(2, V20, V21)
	SQUARES(3, V22, V23)
	VLD1.P 64(R1), [V0.S4, V1.S4, V2.S4, V3.S4]
	SQUARES(0, V24, V25)
	SQUARES(1, V26, V27)
	SQUARES(2, V28, V29)
	SQUARES(3, V30, V31)
	SUBS   $32, R2
	BNE    loop

	VST1.P [V16.D2, V17.D2, V18.D2, V19.D2], 64(R0)
	VST1.P [V20.D2, V21.D2, V22.D2, V23.D2], 64(R0)
	VST1.P [V24.D2, V25.D2, V26.D2, V27.D2], 64(R0)
	VST1   [V28.D2, V29.D2, V30.D2, V31.D2], (R0)
	RET
