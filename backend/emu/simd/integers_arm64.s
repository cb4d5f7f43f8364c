//go:build !noasm

#include "textflag.h"
#include "neon_arm64.h"

// func addTruncatedVectors(sums *int32, x *float32, n int)
TEXT ·addTruncatedVectors(SB), NOSPLIT, $0-24
	MOVD sums+0(FP), R0
	MOVD x+8(FP), R1
	MOVD n+16(FP), R2

loop:
	VLD1   (R0), [V0.S4, V1.S4, V2.S4, V3.S4]
	VLD1.P 64(R1), [V4.S4, V5.S4, V6.S4, V7.S4]
	VFCVTZS(4, 4)
	VFCVTZS(5, 5)
	VFCVTZS(6, 6)
	VFCVTZS(7, 7)
	VADD   V4.S4, V0.S4, V0.S4
	VADD   V5.S4, V1.S4, V1.S4
	VADD   V6.S4, V2.S4, V2.S4
	VADD   V7.S4, V3.S4, V3.S4
	VST1.P [V0.S4, V1.S4, V2.S4, V3.S4], 64(R0)
	SUBS   $16, R2
	BNE    loop
	RET

// func fromInt32Vectors(dst *float32, x *int32, n int)
TEXT ·fromInt32Vectors(SB), NOSPLIT, $0-24
	MOVD dst+0(FP), R0
	MOVD x+8(FP), R1
	MOVD n+16(FP), R2

loop:
	VLD1.P 64(R1), [V0.S4, V1.S4, V2.S4, V3.S4]
	VSCVTF(0, 0)
	VSCVTF(1, 1)
	VSCVTF(2, 2)
	VSCVTF(3, 3)
	VST1.P [V0.S4, V1.S4, V2.S4, V3.S4], 64(R0)
	SUBS   $16, R2
	BNE    loop
	RET
