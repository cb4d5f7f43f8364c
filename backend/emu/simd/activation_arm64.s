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

// The loops of GELU process four vectors of two float64 per iteration. FOUR applies do to
// four vectors each, from m, n and d on. FOUR_BY takes the same vector c instead of m,
// FOUR_OF instead of n.

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

#define FOUR_OF(do, m, c, d) \
	do(m, c, d) \
	do(m+1, c, d+1) \
	do(m+2, c, d+2) \
	do(m+3, c, d+3)

// CONSTANT sets V31 to the next of normalConstants.
#define CONSTANT VLD1R.P 8(R5), [V31.D2]

// POLYNOMIAL replaces d by d·x + the next constant.
#define POLYNOMIAL(x, d) \
	FOUR(VFMULD, x, d, d) \
	CONSTANT \
	FOUR_BY(VFADDD, 31, d, d)

// NORMAL computes normal of V0-V3: Φ in V20-V23, φ in V12-V15. V4-V7 become r, V8-V11
// hold n, V16-V19 t; V30 is 1, V29 must be 0.
#define NORMAL \
	MOVD $·normalConstants(SB), R5 \
	CONSTANT \
	FOUR_BY(VFMULD, 31, 0, 4) \
	FOUR(VFMULD, 0, 4, 4) \
	CONSTANT \
	FOUR_BY(VFMAXD, 31, 4, 4) \
	CONSTANT \
	FOUR_BY(VFMULD, 31, 4, 8) \
	CONSTANT \
	FOUR_BY(VFADDD, 31, 8, 8) \
	FOUR_BY(VFSUBD, 31, 8, 24) \
	CONSTANT \
	FOUR_BY(VFMULD, 31, 24, 12) \
	FOUR(VFSUBD, 12, 4, 4) \
	CONSTANT \
	FOUR_BY(VFMULD, 31, 24, 12) \
	FOUR(VFSUBD, 12, 4, 4) \
	CONSTANT \
	FOUR_BY(VFMULD, 31, 4, 12) \
	CONSTANT \
	FOUR_BY(VFADDD, 31, 12, 12) \
	POLYNOMIAL(4, 12) \
	POLYNOMIAL(4, 12) \
	POLYNOMIAL(4, 12) \
	POLYNOMIAL(4, 12) \
	POLYNOMIAL(4, 12) \
	POLYNOMIAL(4, 12) \
	POLYNOMIAL(4, 12) \
	POLYNOMIAL(4, 12) \
	POLYNOMIAL(4, 12) \
	POLYNOMIAL(4, 12) \
	VSHL $52, V8.D2, V8.D2 \
	VSHL $52, V9.D2, V9.D2 \
	VSHL $52, V10.D2, V10.D2 \
	VSHL $52, V11.D2, V11.D2 \
	VADD V8.D2, V12.D2, V12.D2 \
	VADD V9.D2, V13.D2, V13.D2 \
	VADD V10.D2, V14.D2, V14.D2 \
	VADD V11.D2, V15.D2, V15.D2 \
	CONSTANT \
	VFABSD(0, 24) \
	VFABSD(1, 25) \
	VFABSD(2, 26) \
	VFABSD(3, 27) \
	FOUR_BY(VFMULD, 31, 24, 24) \
	VLD1R.P 8(R5), [V30.D2] \
	FOUR_BY(VFADDD, 30, 24, 24) \
	FOUR_OF(VFDIVD, 24, 30, 16) \
	CONSTANT \
	FOUR_BY(VFMULD, 31, 16, 20) \
	CONSTANT \
	FOUR_BY(VFADDD, 31, 20, 20) \
	POLYNOMIAL(16, 20) \
	POLYNOMIAL(16, 20) \
	POLYNOMIAL(16, 20) \
	POLYNOMIAL(16, 20) \
	POLYNOMIAL(16, 20) \
	POLYNOMIAL(16, 20) \
	POLYNOMIAL(16, 20) \
	POLYNOMIAL(16, 20) \
	POLYNOMIAL(16, 20) \
	CONSTANT \
	FOUR_BY(VFMULD, 31, 12, 24) \
	FOUR(VFMULD, 16, 24, 24) \
	FOUR(VFMULD, 20, 24, 20) \
	FOUR_BY(VFCMGTD, 29, 0, 24) \
	FOUR_OF(VFSUBD, 20, 30, 4) \
	VBIT V24.B16, V4.B16, V20.B16 \
	VBIT V25.B16, V5.B16, V21.B16 \
	VBIT V26.B16, V6.B16, V22.B16 \
	VBIT V27.B16, V7.B16, V23.B16 \
	CONSTANT \
	FOUR_BY(VFMULD, 31, 12, 12)

// WIDEN loads the next eight elements into V0-V3 and does not advance R1.
#define WIDEN \
	VLD1 (R1), [V24.S4, V25.S4] \
	VFCVTLD(24, 0) \
	VFCVTL2D(24, 1) \
	VFCVTLD(25, 2) \
	VFCVTL2D(25, 3)

// NARROW converts V20-V23 to float32, in V24 and V25.
#define NARROW \
	VFCVTND(20, 24) \
	VFCVTN2D(21, 24) \
	VFCVTND(22, 25) \
	VFCVTN2D(23, 25)

// func geluVectors(dst, x *float32, n int)
TEXT ·geluVectors(SB), NOSPLIT, $0-24
	MOVD dst+0(FP), R0
	MOVD x+8(FP), R1
	MOVD n+16(FP), R2
	VEOR V29.B16, V29.B16, V29.B16

loop:
	WIDEN
	NORMAL
	NARROW
	VLD1.P 32(R1), [V0.S4, V1.S4]
	VFMUL(24, 0, 0)
	VFMUL(25, 1, 1)
	VST1.P [V0.S4, V1.S4], 32(R0)
	SUBS   $8, R2
	BNE    loop
	RET

// func geluGradientVectors(dx, x, dy *float32, n int)
TEXT ·geluGradientVectors(SB), NOSPLIT, $0-32
	MOVD dx+0(FP), R0
	MOVD x+8(FP), R1
	MOVD dy+16(FP), R3
	MOVD n+24(FP), R2
	VEOR V29.B16, V29.B16, V29.B16

loop:
	WIDEN
	NORMAL
	FOUR(VFMULD, 0, 12, 12)
	FOUR(VFADDD, 12, 20, 20)
	NARROW
	ADD    $32, R1
	VLD1.P 32(R3), [V0.S4, V1.S4]
	VFMUL(24, 0, 0)
	VFMUL(25, 1, 1)
	VST1.P [V0.S4, V1.S4], 32(R0)
	SUBS   $8, R2
	BNE    loop
	RET
