//go:build !noasm

#include "go_asm.h"
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

// HALVES sets word to the F16 codes of eight codes, one in each 16-bit lane, see
// DEQUANTIZE in decode_amd64.s. fields is a temporary; the first two arguments are the
// numbers of the registers word and fields.
#define HALVES(w, f, word, fields) \
	VMULH(25, w, f) \
	VMULH(26, w, w) \
	VAND V24.B16, fields.B16, fields.B16 \
	VAND V27.B16, word.B16, word.B16 \
	VORR fields.B16, word.B16, word.B16 \
	VCMHIH(28, f, f) \
	VAND V29.B16, fields.B16, fields.B16 \
	VORR fields.B16, word.B16, word.B16

// func dequantizeNEON(dst *float32, src *uint8, n int, scaleInv float32, c *decodeWords)
TEXT ·dequantizeNEON(SB), NOSPLIT, $0-40
	DEQUANTIZE_SETUP
	MOVD  c+32(FP), R4
	MOVHU decodeWords_fields(R4), R3
	VDUP  R3, V24.H8
	MOVHU decodeWords_toFields(R4), R3
	VDUP  R3, V25.H8
	MOVHU decodeWords_toSign(R4), R3
	VDUP  R3, V26.H8
	MOVHU decodeWords_sign(R4), R3
	VDUP  R3, V27.H8
	MOVHU decodeWords_largest(R4), R3
	VDUP  R3, V28.H8
	MOVHU decodeWords_top(R4), R3
	VDUP  R3, V29.H8
	MOVWU decodeWords_rebias(R4), R3
	VDUP  R3, V23.S4

loop:
	VLD1.P 16(R1), [V6.B16]
	VZIP1  V30.B16, V6.B16, V4.B16
	VZIP2  V30.B16, V6.B16, V5.B16
	HALVES(4, 16, V4, V16)
	HALVES(5, 17, V5, V17)
	FROM_F16
	TIMES(23)
	TIMES(31)
	NEXT(loop)
	RET
