//go:build !noasm

#include "textflag.h"
#include "neon_arm64.h"

// V16-V23 are the lanes of sums.

#define ZERO_LANES \
	VEOR V16.B16, V16.B16, V16.B16 \
	VEOR V17.B16, V17.B16, V17.B16 \
	VEOR V18.B16, V18.B16, V18.B16 \
	VEOR V19.B16, V19.B16, V19.B16 \
	VEOR V20.B16, V20.B16, V20.B16 \
	VEOR V21.B16, V21.B16, V21.B16 \
	VEOR V22.B16, V22.B16, V22.B16 \
	VEOR V23.B16, V23.B16, V23.B16

#define STORE_LANES(r) \
	VST1.P [V16.S4, V17.S4, V18.S4, V19.S4], 64(r) \
	VST1   [V20.S4, V21.S4, V22.S4, V23.S4], (r)

// FOLD_LANES sets F16 to the sum of the lanes.
#define FOLD_LANES \
	VFADD(20, 16, 16) \
	VFADD(21, 17, 17) \
	VFADD(22, 18, 18) \
	VFADD(23, 19, 19) \
	FOLD(V16, 16, 17, 18, 19)

// DOT_LANES adds the products of sixteen elements to sixteen lanes.
#define DOT_LANES(a, b, c, d) \
	VLD1.P 64(R1), [V0.S4, V1.S4, V2.S4, V3.S4] \
	VLD1.P 64(R2), [V4.S4, V5.S4, V6.S4, V7.S4] \
	ADD_PRODUCTS(a, b, c, d)

#define ADD_PRODUCTS(a, b, c, d) \
	VFMUL(4, 0, 0) \
	VFMUL(5, 1, 1) \
	VFMUL(6, 2, 2) \
	VFMUL(7, 3, 3) \
	VFADD(0, a, a) \
	VFADD(1, b, b) \
	VFADD(2, c, c) \
	VFADD(3, d, d)

// DOT_LANES_BF16 is DOT_LANES of BF16 values. V12 is zero.
#define DOT_LANES_BF16(a, b, c, d) \
	VLD1.P 32(R1), [V8.H8, V9.H8] \
	VLD1.P 32(R2), [V10.H8, V11.H8] \
	VZIP1  V8.H8, V12.H8, V0.H8 \
	VZIP2  V8.H8, V12.H8, V1.H8 \
	VZIP1  V9.H8, V12.H8, V2.H8 \
	VZIP2  V9.H8, V12.H8, V3.H8 \
	VZIP1  V10.H8, V12.H8, V4.H8 \
	VZIP2  V10.H8, V12.H8, V5.H8 \
	VZIP1  V11.H8, V12.H8, V6.H8 \
	VZIP2  V11.H8, V12.H8, V7.H8 \
	ADD_PRODUCTS(a, b, c, d)

// GAIN_LANES adds dy·x̂ to dgain and g·x̂ to lanes. x̂ = x·inv is in V0; V1 has dy, then
// g = dy ⊙ gain.
#define GAIN_LANES(lanes) \
	VLD1.P 16(R1), [V0.S4] \
	VLD1.P 16(R2), [V1.S4] \
	VLD1.P 16(R3), [V2.S4] \
	VLD1   (R0), [V3.S4] \
	VFMUL(30, 0, 0) \
	VFMUL(0, 1, 4) \
	VFADD(4, 3, 3) \
	VST1.P [V3.S4], 16(R0) \
	VFMUL(2, 1, 1) \
	VFMUL(0, 1, 1) \
	VFADD(1, lanes, lanes)

// func dotLanesVectors(lanes *[32]float32, x, y *float32, n int) float32
TEXT ·dotLanesVectors(SB), NOSPLIT, $0-36
	MOVD lanes+0(FP), R0
	MOVD x+8(FP), R1
	MOVD y+16(FP), R2
	MOVD n+24(FP), R4
	ZERO_LANES

loop:
	DOT_LANES(16, 17, 18, 19)
	DOT_LANES(20, 21, 22, 23)
	SUBS $32, R4
	BNE  loop
	STORE_LANES(R0)
	FOLD_LANES
	FMOVS F16, ret+32(FP)
	RET

// func dotLanesBF16Vectors(lanes *[32]float32, x, y *uint16, n int) float32
TEXT ·dotLanesBF16Vectors(SB), NOSPLIT, $0-36
	MOVD lanes+0(FP), R0
	MOVD x+8(FP), R1
	MOVD y+16(FP), R2
	MOVD n+24(FP), R4
	VEOR V12.B16, V12.B16, V12.B16
	ZERO_LANES

loop:
	DOT_LANES_BF16(16, 17, 18, 19)
	DOT_LANES_BF16(20, 21, 22, 23)
	SUBS $32, R4
	BNE  loop
	STORE_LANES(R0)
	FOLD_LANES
	FMOVS F16, ret+32(FP)
	RET

// func gainLanesVectors(lanes *[32]float32, dgain, x, dy, gain *float32, inv float32, n int) float32
TEXT ·gainLanesVectors(SB), NOSPLIT, $0-60
	MOVD  lanes+0(FP), R5
	MOVD  dgain+8(FP), R0
	MOVD  x+16(FP), R1
	MOVD  dy+24(FP), R2
	MOVD  gain+32(FP), R3
	MOVWU inv+40(FP), R4
	VDUP  R4, V30.S4
	MOVD  n+48(FP), R4
	ZERO_LANES

loop:
	GAIN_LANES(16)
	GAIN_LANES(17)
	GAIN_LANES(18)
	GAIN_LANES(19)
	GAIN_LANES(20)
	GAIN_LANES(21)
	GAIN_LANES(22)
	GAIN_LANES(23)
	SUBS $32, R4
	BNE  loop
	STORE_LANES(R5)
	FOLD_LANES
	FMOVS F16, ret+56(FP)
	RET

// func scaleByGainVectors(dst, x, gain *float32, inv float32, n int)
TEXT ·scaleByGainVectors(SB), NOSPLIT, $0-40
	MOVD  dst+0(FP), R0
	MOVD  x+8(FP), R1
	MOVD  gain+16(FP), R2
	MOVWU inv+24(FP), R4
	VDUP  R4, V30.S4
	MOVD  n+32(FP), R4

loop:
	VLD1.P 16(R1), [V0.S4]
	VLD1.P 16(R2), [V1.S4]
	VFMUL(30, 0, 0)
	VFMUL(1, 0, 0)
	VST1.P [V0.S4], 16(R0)
	SUBS   $4, R4
	BNE    loop
	RET

// func normGradientVectors(dx, x, dy, gain *float32, inv, mean float32, n int)
TEXT ·normGradientVectors(SB), NOSPLIT, $0-48
	MOVD  dx+0(FP), R0
	MOVD  x+8(FP), R1
	MOVD  dy+16(FP), R2
	MOVD  gain+24(FP), R3
	MOVWU inv+32(FP), R4
	VDUP  R4, V30.S4
	MOVWU mean+36(FP), R4
	VDUP  R4, V31.S4
	MOVD  n+40(FP), R4

loop:
	VLD1.P 16(R1), [V0.S4]
	VLD1.P 16(R2), [V1.S4]
	VLD1.P 16(R3), [V2.S4]
	VFMUL(30, 0, 0)
	VFMUL(31, 0, 0)
	VFMUL(2, 1, 1)
	VFSUB(0, 1, 1)
	VFMUL(30, 1, 1)
	VST1.P [V1.S4], 16(R0)
	SUBS   $4, R4
	BNE    loop
	RET
