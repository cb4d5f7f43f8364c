//go:build !noasm

#include "../simd/neon_arm64.h"
#include "textflag.h"

// The decoders share a frame. R0 walks over the chunks of a row and R6 over the rows of
// dst, R1 and R7 over those of src; R2 and R3 are the steps of dst in bytes, R4 that of src;
// R5 counts rows, R8 the columns left in a row, a multiple of 16. Sixteen floats are V0-V3.

#define DECODE_BEGIN(log) \
	MOVD dst+0(FP), R6 \
	MOVD step+8(FP), R2 \
	MOVD chunk+16(FP), R3 \
	MOVD src+24(FP), R7 \
	MOVD ld+32(FP), R4 \
	MOVD rows+40(FP), R5 \
	LSL  $2, R2 \
	LSL  $2, R3 \
	LSL  $log, R4

#define DECODE_ROW \
	MOVD R6, R0 \
	MOVD R7, R1 \
	MOVD cols+48(FP), R8

#define DECODE_END(row, loop) \
	VST1 [V0.S4, V1.S4, V2.S4, V3.S4], (R0) \
	ADD  R3, R0 \
	SUBS $16, R8 \
	BGT  loop \
	ADD  R2, R6 \
	ADD  R4, R7 \
	SUBS $1, R5 \
	BNE  row

// func decodeF32NEON(dst *float32, step, chunk int, src *float32, ld, rows, cols int)
TEXT ·decodeF32NEON(SB), NOSPLIT, $0-56
	DECODE_BEGIN(2)

row:
	DECODE_ROW

loop:
	VLD1.P 64(R1), [V0.S4, V1.S4, V2.S4, V3.S4]
	DECODE_END(row, loop)
	RET

// func decodeBF16NEON(dst *float32, step, chunk int, src *uint16, ld, rows, cols int)
TEXT ·decodeBF16NEON(SB), NOSPLIT, $0-56
	DECODE_BEGIN(1)
	VEOR V7.B16, V7.B16, V7.B16

row:
	DECODE_ROW

loop:
	VLD1.P 32(R1), [V4.H8, V5.H8]
	VZIP1  V4.H8, V7.H8, V0.H8    // zeros below each element
	VZIP2  V4.H8, V7.H8, V1.H8
	VZIP1  V5.H8, V7.H8, V2.H8
	VZIP2  V5.H8, V7.H8, V3.H8
	DECODE_END(row, loop)
	RET

// E5M2 is the upper half of FP16.
//
// func decodeE5M2NEON(dst *float32, step, chunk int, src *uint8, ld, rows, cols int)
TEXT ·decodeE5M2NEON(SB), NOSPLIT, $0-56
	DECODE_BEGIN(0)
	VEOR V7.B16, V7.B16, V7.B16

row:
	DECODE_ROW

loop:
	VLD1.P 16(R1), [V4.B16]
	VZIP1  V4.B16, V7.B16, V5.B16 // zeros below each code
	VZIP2  V4.B16, V7.B16, V6.B16
	VFCVTL(5, 0)
	VFCVTL2(5, 1)
	VFCVTL(6, 2)
	VFCVTL2(6, 3)
	DECODE_END(row, loop)
	RET

// The fields of E4M3, shifted to those of FP16, give 2^-8 of the value, also for
// subnormals, because the exponent biases are 7 and 15. Codes from special on get FP16's
// maximum exponent. The two bytes of an FP16 value are computed separately and interleaved.
//
// func decodeE4M3NEON(dst *float32, step, chunk int, src *uint8, ld, rows, cols int, special uint32)
TEXT ·decodeE4M3NEON(SB), NOSPLIT, $0-60
	DECODE_BEGIN(0)
	MOVWU special+56(FP), R9
	VDUP  R9, V16.B16
	VMOVI $0x7f, V17.B16
	VMOVI $0x80, V18.B16
	VMOVI $0xc0, V19.B16
	MOVD  $0x43800000, R9 // 2^8
	VDUP  R9, V20.S4

row:
	DECODE_ROW

loop:
	VLD1.P 16(R1), [V4.B16]
	VSHL   $7, V4.B16, V5.B16       // low byte: the last mantissa bit
	VUSHR  $1, V4.B16, V6.B16       // high byte, without its two top bits
	VAND   V17.B16, V4.B16, V7.B16  // magnitude
	VUMAX  V16.B16, V7.B16, V21.B16
	VCMEQ  V21.B16, V7.B16, V7.B16  // magnitude >= special
	VBIT   V18.B16, V4.B16, V7.B16  // the sign above it
	VBIT   V19.B16, V7.B16, V6.B16
	VZIP1  V6.B16, V5.B16, V7.B16
	VZIP2  V6.B16, V5.B16, V21.B16
	VFCVTL(7, 0)
	VFCVTL2(7, 1)
	VFCVTL(21, 2)
	VFCVTL2(21, 3)
	VFMUL(20, 0, 0)
	VFMUL(20, 1, 1)
	VFMUL(20, 2, 2)
	VFMUL(20, 3, 3)
	DECODE_END(row, loop)
	RET

// func transpose4NEON(dst *float32, step int, src *float32, ld, k int)
TEXT ·transpose4NEON(SB), NOSPLIT, $0-40
	MOVD dst+0(FP), R0
	MOVD step+8(FP), R2
	MOVD src+16(FP), R1
	MOVD ld+24(FP), R3
	MOVD k+32(FP), R4
	LSL  $2, R2
	ADD  R3<<2, R1, R5
	ADD  R3<<2, R5, R6
	ADD  R3<<2, R6, R7

loop:
	VLD1.P 16(R1), [V0.S4]
	VLD1.P 16(R5), [V1.S4]
	VLD1.P 16(R6), [V2.S4]
	VLD1.P 16(R7), [V3.S4]
	VTRN1  V1.S4, V0.S4, V4.S4 // columns 0 and 2 of rows 0 and 1
	VTRN2  V1.S4, V0.S4, V5.S4 // columns 1 and 3
	VTRN1  V3.S4, V2.S4, V6.S4 // of rows 2 and 3
	VTRN2  V3.S4, V2.S4, V7.S4
	VTRN1  V6.D2, V4.D2, V0.D2
	VTRN1  V7.D2, V5.D2, V1.D2
	VTRN2  V6.D2, V4.D2, V2.D2
	VTRN2  V7.D2, V5.D2, V3.D2
	VST1.P [V0.S4], (R0)(R2)
	VST1.P [V1.S4], (R0)(R2)
	VST1.P [V2.S4], (R0)(R2)
	VST1.P [V3.S4], (R0)(R2)
	SUBS   $4, R4
	BGT    loop
	RET
