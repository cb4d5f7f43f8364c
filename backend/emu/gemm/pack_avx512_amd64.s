//go:build !noasm

#include "transpose_amd64.h"
#include "textflag.h"

// The decoders share a frame. DI walks over the chunks of a row and R9 over
// the rows of dst, SI and R11 over those of src; R8 and R10 are the steps of
// dst in bytes, R12 that of src; R13 counts rows, CX the columns left in a row. K1 masks
// the elements of the last chunk; masked elements are not read, and decode to zero. The
// rows of a transposed A are too far apart for the hardware prefetcher: each row prefetches
// both ends of the eighth row after it. A prefetch past the end does nothing.

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
	KXNORD     K1, K1, K1 \
	MOVQ       R9, DI \
	MOVQ       R11, SI \
	MOVQ       cols+48(FP), CX \
	LEAQ       (R11)(R12*8), AX \
	PREFETCHT0 (AX) \
	PREFETCHT0 -size(AX)(CX*size)

// DECODE_MASK sets K1 to the low CX bits if CX is below 32.
#define DECODE_MASK(whole) \
	CMPQ  CX, $32 \
	JGE   whole \
	MOVL  $-1, AX \
	BZHIL CX, AX, AX \
	KMOVD AX, K1 \
whole:

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
	DECODE_ROW(4)

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
	DECODE_ROW(2)

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
	DECODE_ROW(1)

loop:
	DECODE_MASK(whole)
	VPMOVZXBW.Z   (SI), K1, Z2
	VPSLLW        $8, Z2, Z2
	VEXTRACTI64X4 $1, Z2, Y3
	VCVTPH2PS     Y2, Z0
	VCVTPH2PS     Y3, Z1
	DECODE_END(32, row, loop)
	RET

// The fields of E4M3, shifted to those of FP16, give 2^-8 of the value, also for
// subnormals, because the exponent biases are 7 and 15. Codes from special on get FP16's
// maximum exponent.
//
// func decodeE4M3AVX512(dst *float32, step, chunk int, src *uint8, ld, rows, cols int, special uint32)
TEXT ·decodeE4M3AVX512(SB), NOSPLIT, $0-60
	DECODE_BEGIN(0)
	MOVL         special+56(FP), AX
	VPBROADCASTW AX, Z16
	MOVL         $0x7f, AX
	VPBROADCASTW AX, Z17
	MOVL         $0xbf80, AX
	VPBROADCASTW AX, Z20
	MOVL         $0x4000, AX
	VPBROADCASTW AX, Z18
	MOVL         $0x43800000, AX    // 2^8
	VPBROADCASTD AX, Z19

row:
	DECODE_ROW(1)

loop:
	DECODE_MASK(whole)
	VPMOVSXBW.Z   (SI), K1, Z2
	VPANDD        Z17, Z2, Z3        // magnitude
	VPSLLW        $7, Z2, Z2
	VPCMPUW       $5, Z16, Z3, K2    // magnitude >= special
	VPANDD        Z20, Z2, Z2        // clear the sign's copy in bit 14
	VPADDW        Z18, Z2, K2, Z2
	VEXTRACTI64X4 $1, Z2, Y3
	VCVTPH2PS     Y2, Z0
	VCVTPH2PS     Y3, Z1
	VMULPS        Z19, Z0, Z0
	VMULPS        Z19, Z1, Z1
	DECODE_END(32, row, loop)
	RET

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

	TRANSPOSE16

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

// A round interleaves the bytes of row i with those of row i+8. After four rounds, twice to
// the upper registers and back, a register holds whole columns.
#define WEAVE_UP \
	VPUNPCKLBW Z8, Z0, Z16 \
	VPUNPCKHBW Z8, Z0, Z17 \
	VPUNPCKLBW Z9, Z1, Z18 \
	VPUNPCKHBW Z9, Z1, Z19 \
	VPUNPCKLBW Z10, Z2, Z20 \
	VPUNPCKHBW Z10, Z2, Z21 \
	VPUNPCKLBW Z11, Z3, Z22 \
	VPUNPCKHBW Z11, Z3, Z23 \
	VPUNPCKLBW Z12, Z4, Z24 \
	VPUNPCKHBW Z12, Z4, Z25 \
	VPUNPCKLBW Z13, Z5, Z26 \
	VPUNPCKHBW Z13, Z5, Z27 \
	VPUNPCKLBW Z14, Z6, Z28 \
	VPUNPCKHBW Z14, Z6, Z29 \
	VPUNPCKLBW Z15, Z7, Z30 \
	VPUNPCKHBW Z15, Z7, Z31

#define WEAVE_DOWN \
	VPUNPCKLBW Z24, Z16, Z0 \
	VPUNPCKHBW Z24, Z16, Z1 \
	VPUNPCKLBW Z25, Z17, Z2 \
	VPUNPCKHBW Z25, Z17, Z3 \
	VPUNPCKLBW Z26, Z18, Z4 \
	VPUNPCKHBW Z26, Z18, Z5 \
	VPUNPCKLBW Z27, Z19, Z6 \
	VPUNPCKHBW Z27, Z19, Z7 \
	VPUNPCKLBW Z28, Z20, Z8 \
	VPUNPCKHBW Z28, Z20, Z9 \
	VPUNPCKLBW Z29, Z21, Z10 \
	VPUNPCKHBW Z29, Z21, Z11 \
	VPUNPCKLBW Z30, Z22, Z12 \
	VPUNPCKHBW Z30, Z22, Z13 \
	VPUNPCKLBW Z31, Z23, Z14 \
	VPUNPCKHBW Z31, Z23, Z15

// A transpose of sixteen rows of 64 bytes, in lanes of 16. Interleaving the first half of
// the registers with the second rotates the address of a byte, (row, column in its lane),
// by one bit; after four rounds it is (column, row). Only k bytes of a row are read; dst
// has 64 rows of 32, all of which are written.
//
// func gather16AVX512(dst, src *uint8, ld, k int)
TEXT ·gather16AVX512(SB), NOSPLIT, $0-32
	MOVQ dst+0(FP), DI
	MOVQ src+8(FP), SI
	MOVQ ld+16(FP), AX
	MOVQ k+24(FP), CX
	LEAQ (AX)(AX*2), DX
	MOVQ AX, R8
	SHLQ $5, R8
	ADDQ SI, R8    // the same columns of the next panel's rows
	MOVQ $-1, BX
	CMPQ CX, $64
	JGE  whole
	BZHIQ CX, BX, BX

whole:
	KMOVQ BX, K1
	VMOVDQU8.Z (SI), K1, Z0
	PREFETCHT0 (R8)
	VMOVDQU8.Z (SI)(AX*1), K1, Z1
	PREFETCHT0 (R8)(AX*1)
	VMOVDQU8.Z (SI)(AX*2), K1, Z2
	PREFETCHT0 (R8)(AX*2)
	VMOVDQU8.Z (SI)(DX*1), K1, Z3
	PREFETCHT0 (R8)(DX*1)
	LEAQ (SI)(AX*4), SI
	LEAQ (R8)(AX*4), R8
	VMOVDQU8.Z (SI), K1, Z4
	PREFETCHT0 (R8)
	VMOVDQU8.Z (SI)(AX*1), K1, Z5
	PREFETCHT0 (R8)(AX*1)
	VMOVDQU8.Z (SI)(AX*2), K1, Z6
	PREFETCHT0 (R8)(AX*2)
	VMOVDQU8.Z (SI)(DX*1), K1, Z7
	PREFETCHT0 (R8)(DX*1)
	LEAQ (SI)(AX*4), SI
	LEAQ (R8)(AX*4), R8
	VMOVDQU8.Z (SI), K1, Z8
	PREFETCHT0 (R8)
	VMOVDQU8.Z (SI)(AX*1), K1, Z9
	PREFETCHT0 (R8)(AX*1)
	VMOVDQU8.Z (SI)(AX*2), K1, Z10
	PREFETCHT0 (R8)(AX*2)
	VMOVDQU8.Z (SI)(DX*1), K1, Z11
	PREFETCHT0 (R8)(DX*1)
	LEAQ (SI)(AX*4), SI
	LEAQ (R8)(AX*4), R8
	VMOVDQU8.Z (SI), K1, Z12
	PREFETCHT0 (R8)
	VMOVDQU8.Z (SI)(AX*1), K1, Z13
	PREFETCHT0 (R8)(AX*1)
	VMOVDQU8.Z (SI)(AX*2), K1, Z14
	PREFETCHT0 (R8)(AX*2)
	VMOVDQU8.Z (SI)(DX*1), K1, Z15
	PREFETCHT0 (R8)(DX*1)

	WEAVE_UP
	WEAVE_DOWN
	WEAVE_UP
	WEAVE_DOWN

	VMOVDQU X0, 0(DI)
	VEXTRACTI32X4 $1, Z0, 512(DI)
	VEXTRACTI32X4 $2, Z0, 1024(DI)
	VEXTRACTI32X4 $3, Z0, 1536(DI)
	VMOVDQU X1, 32(DI)
	VEXTRACTI32X4 $1, Z1, 544(DI)
	VEXTRACTI32X4 $2, Z1, 1056(DI)
	VEXTRACTI32X4 $3, Z1, 1568(DI)
	VMOVDQU X2, 64(DI)
	VEXTRACTI32X4 $1, Z2, 576(DI)
	VEXTRACTI32X4 $2, Z2, 1088(DI)
	VEXTRACTI32X4 $3, Z2, 1600(DI)
	VMOVDQU X3, 96(DI)
	VEXTRACTI32X4 $1, Z3, 608(DI)
	VEXTRACTI32X4 $2, Z3, 1120(DI)
	VEXTRACTI32X4 $3, Z3, 1632(DI)
	VMOVDQU X4, 128(DI)
	VEXTRACTI32X4 $1, Z4, 640(DI)
	VEXTRACTI32X4 $2, Z4, 1152(DI)
	VEXTRACTI32X4 $3, Z4, 1664(DI)
	VMOVDQU X5, 160(DI)
	VEXTRACTI32X4 $1, Z5, 672(DI)
	VEXTRACTI32X4 $2, Z5, 1184(DI)
	VEXTRACTI32X4 $3, Z5, 1696(DI)
	VMOVDQU X6, 192(DI)
	VEXTRACTI32X4 $1, Z6, 704(DI)
	VEXTRACTI32X4 $2, Z6, 1216(DI)
	VEXTRACTI32X4 $3, Z6, 1728(DI)
	VMOVDQU X7, 224(DI)
	VEXTRACTI32X4 $1, Z7, 736(DI)
	VEXTRACTI32X4 $2, Z7, 1248(DI)
	VEXTRACTI32X4 $3, Z7, 1760(DI)
	VMOVDQU X8, 256(DI)
	VEXTRACTI32X4 $1, Z8, 768(DI)
	VEXTRACTI32X4 $2, Z8, 1280(DI)
	VEXTRACTI32X4 $3, Z8, 1792(DI)
	VMOVDQU X9, 288(DI)
	VEXTRACTI32X4 $1, Z9, 800(DI)
	VEXTRACTI32X4 $2, Z9, 1312(DI)
	VEXTRACTI32X4 $3, Z9, 1824(DI)
	VMOVDQU X10, 320(DI)
	VEXTRACTI32X4 $1, Z10, 832(DI)
	VEXTRACTI32X4 $2, Z10, 1344(DI)
	VEXTRACTI32X4 $3, Z10, 1856(DI)
	VMOVDQU X11, 352(DI)
	VEXTRACTI32X4 $1, Z11, 864(DI)
	VEXTRACTI32X4 $2, Z11, 1376(DI)
	VEXTRACTI32X4 $3, Z11, 1888(DI)
	VMOVDQU X12, 384(DI)
	VEXTRACTI32X4 $1, Z12, 896(DI)
	VEXTRACTI32X4 $2, Z12, 1408(DI)
	VEXTRACTI32X4 $3, Z12, 1920(DI)
	VMOVDQU X13, 416(DI)
	VEXTRACTI32X4 $1, Z13, 928(DI)
	VEXTRACTI32X4 $2, Z13, 1440(DI)
	VEXTRACTI32X4 $3, Z13, 1952(DI)
	VMOVDQU X14, 448(DI)
	VEXTRACTI32X4 $1, Z14, 960(DI)
	VEXTRACTI32X4 $2, Z14, 1472(DI)
	VEXTRACTI32X4 $3, Z14, 1984(DI)
	VMOVDQU X15, 480(DI)
	VEXTRACTI32X4 $1, Z15, 992(DI)
	VEXTRACTI32X4 $2, Z15, 1504(DI)
	VEXTRACTI32X4 $3, Z15, 2016(DI)
	VZEROUPPER
	RET
