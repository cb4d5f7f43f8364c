//go:build !noasm

#include "go_asm.h"
#include "textflag.h"

// The decoders share a frame. DI walks over the chunks of a row and R9 over the rows of
// dst, SI and R11 over those of src; R8 and R10 are the steps of dst in bytes, R12 that of
// src; R13 counts rows, CX the columns left in a row, a multiple of 16. Prefetches are as
// in the AVX-512 decoders.

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

#define DECODE_ROW(size) \
	MOVQ       R9, DI \
	MOVQ       R11, SI \
	MOVQ       cols+48(FP), CX \
	LEAQ       (R11)(R12*8), AX \
	PREFETCHT0 (AX) \
	PREFETCHT0 -size(AX)(CX*size)

#define DECODE_END(bytes, row, loop) \
	VMOVUPS Y0, (DI) \
	VMOVUPS Y1, 32(DI) \
	ADDQ    $bytes, SI \
	ADDQ    R10, DI \
	SUBQ    $16, CX \
	JGT     loop \
	ADDQ    R8, R9 \
	ADDQ    R12, R11 \
	DECQ    R13 \
	JNZ     row \
	VZEROUPPER

// func decodeF32AVX2(dst *float32, step, chunk int, src *float32, ld, rows, cols int)
TEXT ·decodeF32AVX2(SB), NOSPLIT, $0-56
	DECODE_BEGIN(2)

row:
	DECODE_ROW(4)

loop:
	VMOVUPS (SI), Y0
	VMOVUPS 32(SI), Y1
	DECODE_END(64, row, loop)
	RET

// func decodeBF16AVX2(dst *float32, step, chunk int, src *uint16, ld, rows, cols int)
TEXT ·decodeBF16AVX2(SB), NOSPLIT, $0-56
	DECODE_BEGIN(1)

row:
	DECODE_ROW(2)

loop:
	VPMOVZXWD (SI), Y0
	VPMOVZXWD 16(SI), Y1
	VPSLLD    $16, Y0, Y0
	VPSLLD    $16, Y1, Y1
	DECODE_END(32, row, loop)
	RET

// E5M2 is the upper half of FP16.
//
// func decodeE5M2AVX2(dst *float32, step, chunk int, src *uint8, ld, rows, cols int)
TEXT ·decodeE5M2AVX2(SB), NOSPLIT, $0-56
	DECODE_BEGIN(0)

row:
	DECODE_ROW(1)

loop:
	VPMOVZXBW    (SI), Y2
	VPSLLW       $8, Y2, Y2
	VEXTRACTI128 $1, Y2, X3
	VCVTPH2PS    X2, Y0
	VCVTPH2PS    X3, Y1
	DECODE_END(16, row, loop)
	RET

// The fields of a format with at most four exponent bits, shifted to those of FP16, give the
// value, also for subnormals, but for a power of two: rebias. Codes above largest get FP16's
// maximum exponent.
//
// func decodeFieldsAVX2(dst *float32, step, chunk int, src *uint8, ld, rows, cols int, f *fieldsInF16)
TEXT ·decodeFieldsAVX2(SB), NOSPLIT, $0-64
	DECODE_BEGIN(0)
	MOVQ         f+56(FP), AX
	VPBROADCASTW fieldsInF16_magnitude(AX), Y9
	VPBROADCASTW fieldsInF16_largest(AX), Y8
	VPBROADCASTW fieldsInF16_top(AX), Y10
	VBROADCASTSS fieldsInF16_rebias(AX), Y11
	VMOVQ        fieldsInF16_shift(AX), X12
	VMOVQ        fieldsInF16_signShift(AX), X13

row:
	DECODE_ROW(1)

loop:
	VPMOVZXBW    (SI), Y2
	VPAND        Y9, Y2, Y3         // magnitude
	VPSUBW       Y3, Y2, Y2         // sign
	VPCMPGTW     Y8, Y3, Y4
	VPAND        Y10, Y4, Y4
	VPSLLW       X12, Y3, Y3
	VPSLLW       X13, Y2, Y2
	VPOR         Y4, Y3, Y3
	VPOR         Y3, Y2, Y2
	VEXTRACTI128 $1, Y2, X3
	VCVTPH2PS    X2, Y0
	VCVTPH2PS    X3, Y1
	VMULPS       Y11, Y0, Y0
	VMULPS       Y11, Y1, Y1
	DECODE_END(16, row, loop)
	RET

// func transpose8AVX2(dst *float32, step int, src *float32, ld, k int)
TEXT ·transpose8AVX2(SB), NOSPLIT, $0-40
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
	VMOVUPS (SI), Y0
	VMOVUPS (SI)(AX*1), Y1
	VMOVUPS (SI)(AX*2), Y2
	VMOVUPS (SI)(DX*1), Y3
	VMOVUPS (R9), Y4
	VMOVUPS (R9)(AX*1), Y5
	VMOVUPS (R9)(AX*2), Y6
	VMOVUPS (R9)(DX*1), Y7

	VUNPCKLPS Y1, Y0, Y8
	VUNPCKHPS Y1, Y0, Y9
	VUNPCKLPS Y3, Y2, Y10
	VUNPCKHPS Y3, Y2, Y11
	VUNPCKLPS Y5, Y4, Y12
	VUNPCKHPS Y5, Y4, Y13
	VUNPCKLPS Y7, Y6, Y14
	VUNPCKHPS Y7, Y6, Y15

	// The halves of Y0 are columns 0 and 4 of rows 0-3, of Y1 columns 1 and
	// 5, and so on; Y4-Y7 are rows 4-7.
	VUNPCKLPD Y10, Y8, Y0
	VUNPCKHPD Y10, Y8, Y1
	VUNPCKLPD Y11, Y9, Y2
	VUNPCKHPD Y11, Y9, Y3
	VUNPCKLPD Y14, Y12, Y4
	VUNPCKHPD Y14, Y12, Y5
	VUNPCKLPD Y15, Y13, Y6
	VUNPCKHPD Y15, Y13, Y7

	VPERM2F128 $0x20, Y4, Y0, Y8
	VPERM2F128 $0x20, Y5, Y1, Y9
	VPERM2F128 $0x20, Y6, Y2, Y10
	VPERM2F128 $0x20, Y7, Y3, Y11
	VPERM2F128 $0x31, Y4, Y0, Y12
	VPERM2F128 $0x31, Y5, Y1, Y13
	VPERM2F128 $0x31, Y6, Y2, Y14
	VPERM2F128 $0x31, Y7, Y3, Y15

	LEAQ    (DI)(BX*4), R9
	VMOVUPS Y8, (DI)
	VMOVUPS Y9, (DI)(BX*1)
	VMOVUPS Y10, (DI)(BX*2)
	VMOVUPS Y11, (DI)(R13*1)
	VMOVUPS Y12, (R9)
	VMOVUPS Y13, (R9)(BX*1)
	VMOVUPS Y14, (R9)(BX*2)
	VMOVUPS Y15, (R9)(R13*1)

	ADDQ $32, SI
	LEAQ (R9)(BX*4), DI
	SUBQ $8, CX
	JGT  loop
	VZEROUPPER
	RET

// A transpose of eight rows of 32 bytes, as in gather16AVX512. After three rounds a
// register holds two columns. dst has rows of 16.
//
// func gather8AVX2(dst, src *uint8, ld int)
TEXT ·gather8AVX2(SB), NOSPLIT, $0-24
	MOVQ dst+0(FP), DI
	MOVQ src+8(FP), SI
	MOVQ ld+16(FP), AX
	LEAQ (AX)(AX*2), DX
	VMOVDQU (SI), Y0
	VMOVDQU (SI)(AX*1), Y1
	VMOVDQU (SI)(AX*2), Y2
	VMOVDQU (SI)(DX*1), Y3
	LEAQ (SI)(AX*4), SI
	VMOVDQU (SI), Y4
	VMOVDQU (SI)(AX*1), Y5
	VMOVDQU (SI)(AX*2), Y6
	VMOVDQU (SI)(DX*1), Y7

	VPUNPCKLBW Y4, Y0, Y8
	VPUNPCKHBW Y4, Y0, Y9
	VPUNPCKLBW Y5, Y1, Y10
	VPUNPCKHBW Y5, Y1, Y11
	VPUNPCKLBW Y6, Y2, Y12
	VPUNPCKHBW Y6, Y2, Y13
	VPUNPCKLBW Y7, Y3, Y14
	VPUNPCKHBW Y7, Y3, Y15

	VPUNPCKLBW Y12, Y8, Y0
	VPUNPCKHBW Y12, Y8, Y1
	VPUNPCKLBW Y13, Y9, Y2
	VPUNPCKHBW Y13, Y9, Y3
	VPUNPCKLBW Y14, Y10, Y4
	VPUNPCKHBW Y14, Y10, Y5
	VPUNPCKLBW Y15, Y11, Y6
	VPUNPCKHBW Y15, Y11, Y7

	VPUNPCKLBW Y4, Y0, Y8
	VPUNPCKHBW Y4, Y0, Y9
	VPUNPCKLBW Y5, Y1, Y10
	VPUNPCKHBW Y5, Y1, Y11
	VPUNPCKLBW Y6, Y2, Y12
	VPUNPCKHBW Y6, Y2, Y13
	VPUNPCKLBW Y7, Y3, Y14
	VPUNPCKHBW Y7, Y3, Y15

	VEXTRACTI128 $1, Y8, X0
	VMOVQ X8, 0(DI)
	VMOVHPS X8, 16(DI)
	VMOVQ X0, 256(DI)
	VMOVHPS X0, 272(DI)
	VEXTRACTI128 $1, Y9, X1
	VMOVQ X9, 32(DI)
	VMOVHPS X9, 48(DI)
	VMOVQ X1, 288(DI)
	VMOVHPS X1, 304(DI)
	VEXTRACTI128 $1, Y10, X2
	VMOVQ X10, 64(DI)
	VMOVHPS X10, 80(DI)
	VMOVQ X2, 320(DI)
	VMOVHPS X2, 336(DI)
	VEXTRACTI128 $1, Y11, X3
	VMOVQ X11, 96(DI)
	VMOVHPS X11, 112(DI)
	VMOVQ X3, 352(DI)
	VMOVHPS X3, 368(DI)
	VEXTRACTI128 $1, Y12, X4
	VMOVQ X12, 128(DI)
	VMOVHPS X12, 144(DI)
	VMOVQ X4, 384(DI)
	VMOVHPS X4, 400(DI)
	VEXTRACTI128 $1, Y13, X5
	VMOVQ X13, 160(DI)
	VMOVHPS X13, 176(DI)
	VMOVQ X5, 416(DI)
	VMOVHPS X5, 432(DI)
	VEXTRACTI128 $1, Y14, X6
	VMOVQ X14, 192(DI)
	VMOVHPS X14, 208(DI)
	VMOVQ X6, 448(DI)
	VMOVHPS X6, 464(DI)
	VEXTRACTI128 $1, Y15, X7
	VMOVQ X15, 224(DI)
	VMOVHPS X15, 240(DI)
	VMOVQ X7, 480(DI)
	VMOVHPS X7, 496(DI)
	VZEROUPPER
	RET
