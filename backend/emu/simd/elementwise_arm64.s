//go:build !noasm

#include "textflag.h"
#include "neon_arm64.h"

// func addVectors(dst, x *float32, n int)
TEXT ·addVectors(SB), NOSPLIT, $0-24
	MOVD dst+0(FP), R0
	MOVD x+8(FP), R1
	MOVD n+16(FP), R2

loop:
	VLD1   (R0), [V0.S4, V1.S4, V2.S4, V3.S4]
	VLD1.P 64(R1), [V4.S4, V5.S4, V6.S4, V7.S4]
	VFADD(4, 0, 0)
	VFADD(5, 1, 1)
	VFADD(6, 2, 2)
	VFADD(7, 3, 3)
	VST1.P [V0.S4, V1.S4, V2.S4, V3.S4], 64(R0)
	SUBS   $16, R2
	BNE    loop
	RET

// func butterflyVectors(x, y *float32, n int)
TEXT ·butterflyVectors(SB), NOSPLIT, $0-24
	MOVD x+0(FP), R0
	MOVD y+8(FP), R1
	MOVD n+16(FP), R2

loop:
	VLD1   (R0), [V0.S4, V1.S4, V2.S4, V3.S4]
	VLD1   (R1), [V4.S4, V5.S4, V6.S4, V7.S4]
	VFADD(4, 0, 8)
	VFADD(5, 1, 9)
	VFADD(6, 2, 10)
	VFADD(7, 3, 11)
	VFSUB(4, 0, 0)
	VFSUB(5, 1, 1)
	VFSUB(6, 2, 2)
	VFSUB(7, 3, 3)
	VST1.P [V8.S4, V9.S4, V10.S4, V11.S4], 64(R0)
	VST1.P [V0.S4, V1.S4, V2.S4, V3.S4], 64(R1)
	SUBS   $16, R2
	BNE    loop
	RET

// func multiplyVectors(dst, x, y *float32, n int)
TEXT ·multiplyVectors(SB), NOSPLIT, $0-32
	MOVD dst+0(FP), R0
	MOVD x+8(FP), R1
	MOVD y+16(FP), R2
	MOVD n+24(FP), R3

loop:
	VLD1.P 64(R1), [V0.S4, V1.S4, V2.S4, V3.S4]
	VLD1.P 64(R2), [V4.S4, V5.S4, V6.S4, V7.S4]
	VFMUL(4, 0, 0)
	VFMUL(5, 1, 1)
	VFMUL(6, 2, 2)
	VFMUL(7, 3, 3)
	VST1.P [V0.S4, V1.S4, V2.S4, V3.S4], 64(R0)
	SUBS   $16, R3
	BNE    loop
	RET

// func scaleVectors(x *float32, n int, scale float32)
TEXT ·scaleVectors(SB), NOSPLIT, $0-20
	MOVD  x+0(FP), R0
	MOVD  n+8(FP), R1
	MOVWU scale+16(FP), R2
	VDUP  R2, V4.S4

loop:
	VLD1   (R0), [V0.S4, V1.S4, V2.S4, V3.S4]
	VFMUL(4, 0, 0)
	VFMUL(4, 1, 1)
	VFMUL(4, 2, 2)
	VFMUL(4, 3, 3)
	VST1.P [V0.S4, V1.S4, V2.S4, V3.S4], 64(R0)
	SUBS   $16, R1
	BNE    loop
	RET

// MAX_MAGNITUDE folds the magnitudes of x into a.
#define MAX_MAGNITUDE(x, a) \
	VAND  V8.B16, x.B16, x.B16 \
	VAND  V8.B16, a.B16, a.B16 \
	VUMAX x.S4, a.S4, a.S4

// func maxMagnitudesVectors(dst, x *float32, n int)
TEXT ·maxMagnitudesVectors(SB), NOSPLIT, $0-24
	MOVD dst+0(FP), R0
	MOVD x+8(FP), R1
	MOVD n+16(FP), R2
	MOVD $0x7fffffff, R3
	VDUP R3, V8.S4

loop:
	VLD1   (R0), [V0.S4, V1.S4, V2.S4, V3.S4]
	VLD1.P 64(R1), [V4.S4, V5.S4, V6.S4, V7.S4]
	MAX_MAGNITUDE(V4, V0)
	MAX_MAGNITUDE(V5, V1)
	MAX_MAGNITUDE(V6, V2)
	MAX_MAGNITUDE(V7, V3)
	VST1.P [V0.S4, V1.S4, V2.S4, V3.S4], 64(R0)
	SUBS   $16, R2
	BNE    loop
	RET
