//go:build !noasm

#include "neon_arm64.h"
#include "textflag.h"

// Casts to float32, 16 elements per iteration. R0, R1 and R2 are dst, src and the
// number of elements left; V0-V3 are the results, V31 is the scale, V30 zero.

#define SETUP \
	MOVD dst+0(FP), R0 \
	MOVD src+8(FP), R1 \
	MOVD n+16(FP), R2 \
	VEOR V30.B16, V30.B16, V30.B16

#define DEQUANTIZE_SETUP \
	SETUP \
	MOVWU scaleInv+24(FP), R3 \
	VDUP  R3, V31.S4

#define TIMES(x) \
	VFMUL(x, 0, 0) \
	VFMUL(x, 1, 1) \
	VFMUL(x, 2, 2) \
	VFMUL(x, 3, 3)

// FROM_F16 converts the sixteen F16 codes in V4 and V5.
#define FROM_F16 \
	VFCVTL(4, 0) \
	VFCVTL2(4, 1) \
	VFCVTL(5, 2) \
	VFCVTL2(5, 3)

#define NEXT(loop) \
	VST1.P [V0.S4, V1.S4, V2.S4, V3.S4], 64(R0) \
	SUBS   $16, R2 \
	BNE    loop

// func decodeBF16NEON(dst *float32, src *uint16, n int)
TEXT ·decodeBF16NEON(SB), NOSPLIT, $0-24
	SETUP

loop:
	VLD1.P 32(R1), [V4.H8, V5.H8]
	VZIP1  V4.H8, V30.H8, V0.H8
	VZIP2  V4.H8, V30.H8, V1.H8
	VZIP1  V5.H8, V30.H8, V2.H8
	VZIP2  V5.H8, V30.H8, V3.H8
	NEXT(loop)
	RET

// func dequantize16NEON(dst *float32, src *uint16, n int, scaleInv float32)
TEXT ·dequantize16NEON(SB), NOSPLIT, $0-28
	DEQUANTIZE_SETUP

loop:
	VLD1.P 32(R1), [V4.H8, V5.H8]
	FROM_F16
	TIMES(31)
	NEXT(loop)
	RET

// An E5M2 code is the upper byte of the F16 code of the same value.
//
// func dequantizeE5M2NEON(dst *float32, src *uint8, n int, scaleInv float32)
TEXT ·dequantizeE5M2NEON(SB), NOSPLIT, $0-28
	DEQUANTIZE_SETUP

loop:
	VLD1.P 16(R1), [V6.B16]
	VZIP1  V6.B16, V30.B16, V4.B16
	VZIP2  V6.B16, V30.B16, V5.B16
	FROM_F16
	TIMES(31)
	NEXT(loop)
	RET

// An E4M3 code, its fields shifted to their place in F16, is the F16 code of 2^-8
// times the value, for subnormals too, because the exponent biases are 7 and 15.
// Codes from special on get the top exponent of F16 instead. The loop computes the
// two bytes of each F16 code separately and interleaves them. The multiplication by
// 2^8 is exact and comes first, because 2^8 times the scale can overflow.
//
// func dequantizeE4M3NEON(dst *float32, src *uint8, n int, scaleInv float32, special uint32)
TEXT ·dequantizeE4M3NEON(SB), NOSPLIT, $0-32
	DEQUANTIZE_SETUP
	MOVWU special+28(FP), R3
	VDUP  R3, V29.B16
	VMOVI $0x7f, V28.B16
	VMOVI $0x80, V27.B16
	VMOVI $0xc0, V26.B16
	MOVD  $0x43800000, R3 // 2^8
	VDUP  R3, V25.S4

loop:
	VLD1.P 16(R1), [V6.B16]
	VSHL   $7, V6.B16, V7.B16      // low byte: the last mantissa bit
	VUSHR  $1, V6.B16, V16.B16     // high byte, except its two top bits
	VAND   V28.B16, V6.B16, V17.B16
	VUMAX  V29.B16, V17.B16, V18.B16
	VCMEQ  V18.B16, V17.B16, V17.B16 // magnitude >= special
	VBIT   V27.B16, V6.B16, V17.B16  // the sign above it
	VBIT   V26.B16, V17.B16, V16.B16
	VZIP1  V16.B16, V7.B16, V4.B16
	VZIP2  V16.B16, V7.B16, V5.B16
	FROM_F16
	TIMES(25)
	TIMES(31)
	NEXT(loop)
	RET
