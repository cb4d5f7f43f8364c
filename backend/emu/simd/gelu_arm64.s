//go:build !noasm

#include "textflag.h"
#include "neon_arm64.h"

// The loops process four vectors per iteration. FOUR applies do to four vectors each, from
// m, n and d on. FOUR_BY takes the same vector c instead of m; FOUR_OF has no m.

#define FOUR(do, m, n, d) \
	do(m, n, d) \
	do(m+1, n+1, d+1) \
	do(m+2, n+2, d+2) \
	do(m+3, n+3, d+3)

#define FOUR_BY(do, c, n, d) \
	do(c, n, d) \
	do(c, n+1, d+1) \
	do(c, n+2, d+2) \
	do(c, n+3, d+3)

#define FOUR_OF(do, n, d) \
	do(n, d) \
	do(n+1, d+1) \
	do(n+2, d+2) \
	do(n+3, d+3)

// CONSTANT sets V31 to the next of geluConstants, EXP_CONSTANT to that of expConstants.
#define CONSTANT VLD1R.P 4(R5), [V31.S4]
#define EXP_CONSTANT VLD1R.P 4(R6), [V31.S4]

// POLYNOMIAL replaces d by d·x + the next constant.
#define POLYNOMIAL(constant, x, d) \
	FOUR(VFMUL, x, d, d) \
	constant \
	FOUR_BY(VFADD, 31, d, d)

// HALF_SQUARE_POWER loads x into V0-V3. It computes a in V4-V7, halfSquarePower in
// V12-V15, and d in V8-V11. V30 becomes 1.
#define HALF_SQUARE_POWER \
	VLD1.P 64(R1), [V0.S4, V1.S4, V2.S4, V3.S4] \
	MOVD $·geluConstants(SB), R5 \
	MOVD $·expConstants+16(SB), R6 \
	FOUR_OF(VFABS, 0, 4) \
	CONSTANT \
	FOUR_BY(VFMIN, 31, 4, 4) \
	CONSTANT \
	FOUR_BY(VFMUL, 31, 4, 12) \
	FOUR(VFMUL, 4, 12, 8) \
	FOUR(VFMUL, 4, 12, 20) \
	FOUR(VFMSUB, 4, 12, 20) \
	EXP_CONSTANT \
	FOUR_BY(VFMUL, 31, 8, 16) \
	CONSTANT \
	FOUR_BY(VFADD, 31, 16, 16) \
	FOUR_BY(VFSUB, 31, 16, 12) \
	EXP_CONSTANT \
	FOUR_BY(VFMSUB, 31, 12, 8) \
	EXP_CONSTANT \
	FOUR_BY(VFMUL, 31, 12, 12) \
	FOUR(VFSUB, 12, 8, 8) \
	FOUR(VFSUB, 20, 8, 8) \
	EXP_CONSTANT \
	FOUR_BY(VFMUL, 31, 8, 12) \
	EXP_CONSTANT \
	FOUR_BY(VFADD, 31, 12, 12) \
	POLYNOMIAL(EXP_CONSTANT, 8, 12) \
	POLYNOMIAL(EXP_CONSTANT, 8, 12) \
	POLYNOMIAL(EXP_CONSTANT, 8, 12) \
	POLYNOMIAL(EXP_CONSTANT, 8, 12) \
	FOUR(VFMUL, 8, 12, 12) \
	FOUR(VFMUL, 8, 12, 12) \
	FOUR(VFADD, 8, 12, 12) \
	VLD1R (R6), [V30.S4] \
	FOUR_BY(VFADD, 30, 12, 12) \
	VSHL $23, V16.S4, V16.S4 \
	VSHL $23, V17.S4, V17.S4 \
	VSHL $23, V18.S4, V18.S4 \
	VSHL $23, V19.S4, V19.S4 \
	VADD V16.S4, V12.S4, V12.S4 \
	VADD V17.S4, V13.S4, V13.S4 \
	VADD V18.S4, V14.S4, V14.S4 \
	VADD V19.S4, V15.S4, V15.S4 \
	CONSTANT \
	FOUR_BY(VFADD, 31, 4, 8) \
	FOUR(VFDIV, 8, 4, 8)

// MILLS replaces d in V8-V11 by d − geluCenter, and computes p(d) in V16-V19.
#define MILLS \
	CONSTANT \
	FOUR_BY(VFSUB, 31, 8, 8) \
	CONSTANT \
	FOUR_BY(VFMUL, 31, 8, 16) \
	CONSTANT \
	FOUR_BY(VFADD, 31, 16, 16) \
	POLYNOMIAL(CONSTANT, 8, 16) \
	POLYNOMIAL(CONSTANT, 8, 16) \
	POLYNOMIAL(CONSTANT, 8, 16) \
	POLYNOMIAL(CONSTANT, 8, 16) \
	POLYNOMIAL(CONSTANT, 8, 16) \
	POLYNOMIAL(CONSTANT, 8, 16) \
	POLYNOMIAL(CONSTANT, 8, 16) \
	POLYNOMIAL(CONSTANT, 8, 16)

// STEP computes unitStep of V0-V3 in V4-V7.
#define STEP \
	FOUR_OF(VPOSITIVE, 0, 4) \
	VAND V30.B16, V4.B16, V4.B16 \
	VAND V30.B16, V5.B16, V5.B16 \
	VAND V30.B16, V6.B16, V6.B16 \
	VAND V30.B16, V7.B16, V7.B16

// func geluVectors(dst, x *float32, n int)
TEXT ·geluVectors(SB), NOSPLIT, $0-24
	MOVD dst+0(FP), R0
	MOVD x+8(FP), R1
	MOVD n+16(FP), R2

loop:
	HALF_SQUARE_POWER
	FOUR(VFMUL, 8, 12, 12)
	MILLS
	FOUR(VFMUL, 16, 12, 12)
	CONSTANT
	FOUR_BY(VFMUL, 31, 12, 12)
	STEP
	FOUR(VFMUL, 4, 0, 0)
	FOUR(VFSUB, 12, 0, 0)
	VST1.P [V0.S4, V1.S4, V2.S4, V3.S4], 64(R0)
	SUBS   $16, R2
	BNE    loop
	RET

// SIGNED flips the sign of d where n, which it overwrites, has a sign. V28 is −0.
#define SIGNED(n, d) \
	VAND V28.B16, n.B16, n.B16 \
	VEOR n.B16, d.B16, d.B16

// func geluGradientVectors(dx, x, dy *float32, n int)
TEXT ·geluGradientVectors(SB), NOSPLIT, $0-32
	MOVD dx+0(FP), R0
	MOVD x+8(FP), R1
	MOVD dy+16(FP), R3
	MOVD n+24(FP), R2
	VEOR V29.B16, V29.B16, V29.B16
	MOVD $0x80000000, R7
	VDUP R7, V28.S4

loop:
	HALF_SQUARE_POWER
	MILLS
	ADD $4, R5
	CONSTANT
	VFSUB(8, 31, 8)
	VFSUB(9, 31, 9)
	VFSUB(10, 31, 10)
	VFSUB(11, 31, 11)
	FOUR(VFMUL, 8, 16, 16)
	CONSTANT
	FOUR_BY(VFMUL, 31, 4, 4)
	FOUR(VFSUB, 4, 16, 16)
	FOUR(VFMUL, 16, 12, 12)
	CONSTANT
	FOUR_BY(VFMUL, 31, 12, 12)
	STEP
	FOUR_BY(VFMUL, 29, 0, 8)
	FOUR(VFADD, 8, 4, 4)
	SIGNED(V0, V12)
	SIGNED(V1, V13)
	SIGNED(V2, V14)
	SIGNED(V3, V15)
	FOUR(VFSUB, 12, 4, 4)
	VLD1.P 64(R3), [V0.S4, V1.S4, V2.S4, V3.S4]
	FOUR(VFMUL, 4, 0, 0)
	VST1.P [V0.S4, V1.S4, V2.S4, V3.S4], 64(R0)
	SUBS   $16, R2
	BNE    loop
	RET
