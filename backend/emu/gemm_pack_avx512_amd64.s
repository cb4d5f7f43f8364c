//go:build !noasm

#include "textflag.h"

// The decoders share a frame. DI walks over the chunks of a row and R9 over
// the rows of dst, SI and R11 over those of src; R8 and R10 are the steps of
// dst in bytes, R12 that of src; R13 counts rows, CX the columns left in one.
// K1 masks the elements of the last chunk; what is masked is not read, and
// decodes to zero.

#define DECODE_BEGIN(log) \
	MOVQ dst+0(FP), R9 \
	MOVQ step+8(FP), R8 \
	MOVQ chunk+16(FP), R10 \
	MOVQ src+24(FP), R11 \
	MOVQ ld+32(FP), R12 \
	MOVQ rows+40(FP), R13 \
	SHLQ $2, R8 \
	SHLQ $2, R10 \
	SHLQ $log, R12

#define DECODE_ROW \
	MOVQ R9, DI \
	MOVQ R11, SI \
	MOVQ cols+48(FP), CX

// DECODE_MASK sets K1 to the low CX bits if CX is below 32.
#define DECODE_MASK(whole) \
	MOVL  $-1, AX \
	CMPQ  CX, $32 \
	JGE   whole \
	BZHIL CX, AX, AX \
whole: \
	KMOVD AX, K1

#define DECODE_END(bytes, row, loop) \
	VMOVUPS Z0, (DI) \
	VMOVUPS Z1, 64(DI) \
	ADDQ    $bytes, SI \
	ADDQ    R10, DI \
	SUBQ    $32, CX \
	JGT     loop \
	ADDQ    R8, R9 \
	ADDQ    R12, R11 \
	DECQ    R13 \
	JNZ     row \
	VZEROUPPER

// func decodeF32AVX512(dst *float32, step, chunk int, src *float32, ld, rows, cols int)
TEXT ·decodeF32AVX512(SB), NOSPLIT, $0-56
	DECODE_BEGIN(2)

row:
	DECODE_ROW

loop:
	DECODE_MASK(whole)
	KSHIFTRD  $16, K1, K2
	VMOVUPS.Z (SI), K1, Z0
	VMOVUPS.Z 64(SI), K2, Z1
	DECODE_END(128, row, loop)
	RET

// func decodeBF16AVX512(dst *float32, step, chunk int, src *uint16, ld, rows, cols int)
TEXT ·decodeBF16AVX512(SB), NOSPLIT, $0-56
	DECODE_BEGIN(1)

row:
	DECODE_ROW

loop:
	DECODE_MASK(whole)
	KSHIFTRD    $16, K1, K2
	VPMOVZXWD.Z (SI), K1, Z0
	VPMOVZXWD.Z 32(SI), K2, Z1
	VPSLLD      $16, Z0, Z0
	VPSLLD      $16, Z1, Z1
	DECODE_END(64, row, loop)
	RET

// E5M2 is the upper half of FP16.
//
// func decodeE5M2AVX512(dst *float32, step, chunk int, src *uint8, ld, rows, cols int)
TEXT ·decodeE5M2AVX512(SB), NOSPLIT, $0-56
	DECODE_BEGIN(0)

row:
	DECODE_ROW

loop:
	DECODE_MASK(whole)
	VPMOVZXBW.Z   (SI), K1, Z2
	VPSLLW        $8, Z2, Z2
	VEXTRACTI64X4 $1, Z2, Y3
	VCVTPH2PS     Y2, Z0
	VCVTPH2PS     Y3, Z1
	DECODE_END(32, row, loop)
	RET

// E4M3 with its fields moved to their place in FP16 is 2^-8 of its value,
// subnormals too, because the exponent biases are 7 and 15. Codes from special
// on get the top exponent of FP16 instead.
//
// func decodeE4M3AVX512(dst *float32, step, chunk int, src *uint8, ld, rows, cols int, special uint32)
TEXT ·decodeE4M3AVX512(SB), NOSPLIT, $0-60
	DECODE_BEGIN(0)
	MOVL         special+56(FP), AX
	VPBROADCASTW AX, Z16
	MOVL         $0x7f, AX
	VPBROADCASTW AX, Z17
	MOVL         $0x4000, AX
	VPBROADCASTW AX, Z18
	MOVL         $0x43800000, AX    // 2^8
	VPBROADCASTD AX, Z19

row:
	DECODE_ROW

loop:
	DECODE_MASK(whole)
	VPMOVZXBW.Z   (SI), K1, Z2
	VPANDD        Z17, Z2, Z3        // magnitude
	VPSUBW        Z3, Z2, Z2         // sign
	VPCMPUW       $5, Z16, Z3, K2    // magnitude >= special
	VPSLLW        $7, Z3, Z3
	VPORD         Z18, Z3, Z4
	VMOVDQU16     Z4, K2, Z3
	VPSLLW        $8, Z2, Z2
	VPORD         Z2, Z3, Z2
	VEXTRACTI64X4 $1, Z2, Y3
	VCVTPH2PS     Y2, Z0
	VCVTPH2PS     Y3, Z1
	VMULPS        Z19, Z0, Z0
	VMULPS        Z19, Z1, Z1
	DECODE_END(32, row, loop)
	RET

// A 16×16 transpose in registers: pairs of elements, pairs of pairs, then two
// rounds of 128-bit lanes.

#define PAIRS(a, b, lo, hi) \
	VUNPCKLPS b, a, lo \
	VUNPCKHPS b, a, hi

#define QUADS(a, b, lo, hi) \
	VUNPCKLPD b, a, lo \
	VUNPCKHPD b, a, hi

#define LANES(a, b, even, odd) \
	VSHUFF32X4 $0x88, b, a, even \
	VSHUFF32X4 $0xdd, b, a, odd

// func transpose16AVX512(dst *float32, step int, src *float32, ld, k int)
TEXT ·transpose16AVX512(SB), NOSPLIT, $0-40
	MOVQ dst+0(FP), DI
	MOVQ step+8(FP), BX
	MOVQ src+16(FP), SI
	MOVQ ld+24(FP), AX
	MOVQ k+32(FP), CX
	SHLQ $2, BX
	SHLQ $2, AX
	LEAQ (AX)(AX*2), DX
	LEAQ (BX)(BX*2), R13

loop:
	LEAQ    (SI)(AX*4), R9
	LEAQ    (R9)(AX*4), R10
	LEAQ    (R10)(AX*4), R11
	VMOVUPS (SI), Z0
	VMOVUPS (SI)(AX*1), Z1
	VMOVUPS (SI)(AX*2), Z2
	VMOVUPS (SI)(DX*1), Z3
	VMOVUPS (R9), Z4
	VMOVUPS (R9)(AX*1), Z5
	VMOVUPS (R9)(AX*2), Z6
	VMOVUPS (R9)(DX*1), Z7
	VMOVUPS (R10), Z8
	VMOVUPS (R10)(AX*1), Z9
	VMOVUPS (R10)(AX*2), Z10
	VMOVUPS (R10)(DX*1), Z11
	VMOVUPS (R11), Z12
	VMOVUPS (R11)(AX*1), Z13
	VMOVUPS (R11)(AX*2), Z14
	VMOVUPS (R11)(DX*1), Z15

	PAIRS(Z0, Z1, Z16, Z17)
	PAIRS(Z2, Z3, Z18, Z19)
	PAIRS(Z4, Z5, Z20, Z21)
	PAIRS(Z6, Z7, Z22, Z23)
	PAIRS(Z8, Z9, Z24, Z25)
	PAIRS(Z10, Z11, Z26, Z27)
	PAIRS(Z12, Z13, Z28, Z29)
	PAIRS(Z14, Z15, Z30, Z31)

	// Lane l of Z0 is column 4l of rows 0-3, of Z1 column 4l+1, and so on;
	// Z4-Z7 are rows 4-7, Z8-Z11 rows 8-11, Z12-Z15 rows 12-15.
	QUADS(Z16, Z18, Z0, Z1)
	QUADS(Z17, Z19, Z2, Z3)
	QUADS(Z20, Z22, Z4, Z5)
	QUADS(Z21, Z23, Z6, Z7)
	QUADS(Z24, Z26, Z8, Z9)
	QUADS(Z25, Z27, Z10, Z11)
	QUADS(Z28, Z30, Z12, Z13)
	QUADS(Z29, Z31, Z14, Z15)

	LANES(Z0, Z4, Z16, Z20)
	LANES(Z1, Z5, Z17, Z21)
	LANES(Z2, Z6, Z18, Z22)
	LANES(Z3, Z7, Z19, Z23)
	LANES(Z8, Z12, Z24, Z28)
	LANES(Z9, Z13, Z25, Z29)
	LANES(Z10, Z14, Z26, Z30)
	LANES(Z11, Z15, Z27, Z31)

	LANES(Z16, Z24, Z0, Z8)
	LANES(Z17, Z25, Z1, Z9)
	LANES(Z18, Z26, Z2, Z10)
	LANES(Z19, Z27, Z3, Z11)
	LANES(Z20, Z28, Z4, Z12)
	LANES(Z21, Z29, Z5, Z13)
	LANES(Z22, Z30, Z6, Z14)
	LANES(Z23, Z31, Z7, Z15)

	LEAQ    (DI)(BX*4), R9
	LEAQ    (R9)(BX*4), R10
	LEAQ    (R10)(BX*4), R11
	VMOVUPS Z0, (DI)
	VMOVUPS Z1, (DI)(BX*1)
	VMOVUPS Z2, (DI)(BX*2)
	VMOVUPS Z3, (DI)(R13*1)
	VMOVUPS Z4, (R9)
	VMOVUPS Z5, (R9)(BX*1)
	VMOVUPS Z6, (R9)(BX*2)
	VMOVUPS Z7, (R9)(R13*1)
	VMOVUPS Z8, (R10)
	VMOVUPS Z9, (R10)(BX*1)
	VMOVUPS Z10, (R10)(BX*2)
	VMOVUPS Z11, (R10)(R13*1)
	VMOVUPS Z12, (R11)
	VMOVUPS Z13, (R11)(BX*1)
	VMOVUPS Z14, (R11)(BX*2)
	VMOVUPS Z15, (R11)(R13*1)

	ADDQ $64, SI
	LEAQ (R11)(BX*4), DI
	SUBQ $16, CX
	JGT  loop
	VZEROUPPER
	RET
