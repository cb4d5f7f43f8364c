//go:build !noasm

#include "textflag.h"

// Extents: the largest word of masters in X0, the largest bytes of the moments in X1 and X2, and
// the smallest byte of the second one in X3 become floats. X12 has all bits set.

#define EXTENTS \
	MOVQ p+0(FP), R8 \
	MOVQ m+8(FP), R9 \
	MOVQ v+16(FP), R10 \
	MOVQ blocks+24(FP), CX \
	MOVQ pMax+32(FP), R11 \
	MOVQ mMax+40(FP), R12 \
	MOVQ vMax+48(FP), R13 \
	MOVQ vMin+56(FP), DX \
	XORQ AX, AX

// FOLD folds the halves of Y by op, a maximum or minimum, into X.
#define FOLD(op, Y, X) \
	VEXTRACTI128 $1, Y, X15 \
	op           X15, X, X

// SMALLEST_BYTE sets the first word of X to the smallest of its bytes. VPHMINPOSUW finds
// the smallest of eight words.
#define SMALLEST_BYTE(X) \
	VPSRLW      $8, X, X15 \
	VPMINUB     X15, X, X \
	VPHMINPOSUW X, X

#define LARGEST_WORD(X) \
	VPXOR       X12, X, X \
	VPHMINPOSUW X, X \
	VPXOR       X12, X, X

#define LARGEST_BYTE(X) \
	VPXOR  X12, X, X \
	SMALLEST_BYTE(X) \
	VPSRLW $8, X12, X15 \
	VPXOR  X15, X, X

// STORE_EXTENT stores the code in the low bits of X, whose upper bits are those of F16.
#define STORE_EXTENT(X, shift, to) \
	VPSLLW    $shift, X, X \
	VCVTPH2PS X, X \
	VMOVSS    X, (to)(AX*4)

#define STORE_EXTENTS \
	FOLD(VPMAXUW, Y0, X0) \
	FOLD(VPMAXUB, Y1, X1) \
	FOLD(VPMAXUB, Y2, X2) \
	FOLD(VPMINUB, Y3, X3) \
	LARGEST_WORD(X0) \
	LARGEST_BYTE(X1) \
	LARGEST_BYTE(X2) \
	SMALLEST_BYTE(X3) \
	STORE_EXTENT(X0, 0, R11) \
	STORE_EXTENT(X1, 7, R12) \
	STORE_EXTENT(X2, 8, R13) \
	STORE_EXTENT(X3, 8, DX) \
	ADDQ $512, R8 \
	ADDQ $256, R9 \
	ADDQ $256, R10 \
	INCQ AX \
	CMPQ AX, CX \
	JB   block \
	VZEROUPPER \
	RET

// LARGER folds codes & mask into top by op.
#define LARGER512(op, codes, mask, top) \
	VPANDD codes, mask, Z4 \
	op     Z4, top, top

#define FOLD512(op, Z, Y) \
	VEXTRACTI64X4 $1, Z, Y15 \
	op            Y15, Y, Y

// func extentsAVX512(p *uint16, m, v *uint8, blocks int, pMax, mMax, vMax, vMin *float32)
TEXT ·extentsAVX512(SB), NOSPLIT, $0-64
	EXTENTS
	MOVL         $0x7fff7fff, BX
	VPBROADCASTD BX, Z10
	MOVL         $0x7f7f7f7f, BX
	VPBROADCASTD BX, Z11
	VPCMPEQD     X12, X12, X12

block:
	VPANDD  0(R8), Z10, Z0
	LARGER512(VPMAXUW, 64(R8), Z10, Z0)
	LARGER512(VPMAXUW, 128(R8), Z10, Z0)
	LARGER512(VPMAXUW, 192(R8), Z10, Z0)
	LARGER512(VPMAXUW, 256(R8), Z10, Z0)
	LARGER512(VPMAXUW, 320(R8), Z10, Z0)
	LARGER512(VPMAXUW, 384(R8), Z10, Z0)
	LARGER512(VPMAXUW, 448(R8), Z10, Z0)
	FOLD512(VPMAXUW, Z0, Y0)

	VPANDD  0(R9), Z11, Z1
	LARGER512(VPMAXUB, 64(R9), Z11, Z1)
	LARGER512(VPMAXUB, 128(R9), Z11, Z1)
	LARGER512(VPMAXUB, 192(R9), Z11, Z1)
	FOLD512(VPMAXUB, Z1, Y1)

	VMOVDQU8 0(R10), Z2
	VMOVDQU8 64(R10), Z4
	VMOVDQU8 128(R10), Z5
	VMOVDQU8 192(R10), Z6
	VPMINUB  Z4, Z2, Z3
	VPMAXUB  Z4, Z2, Z2
	VPMINUB  Z6, Z5, Z4
	VPMAXUB  Z6, Z5, Z5
	VPMINUB  Z4, Z3, Z3
	VPMAXUB  Z5, Z2, Z2
	FOLD512(VPMAXUB, Z2, Y2)
	FOLD512(VPMINUB, Z3, Y3)
	STORE_EXTENTS

#define LARGER(op, codes, mask, top) \
	VPAND codes, mask, Y4 \
	op    Y4, top, top

#define RANGE(codes) \
	VMOVDQU codes, Y4 \
	VPMAXUB Y4, Y2, Y2 \
	VPMINUB Y4, Y3, Y3

// func extentsAVX2(p *uint16, m, v *uint8, blocks int, pMax, mMax, vMax, vMin *float32)
TEXT ·extentsAVX2(SB), NOSPLIT, $0-64
	EXTENTS
	VPCMPEQD Y12, Y12, Y12
	VPSRLW   $1, Y12, Y10  // 0x7fff
	VPSRLW   $9, Y12, Y11
	VPACKUSWB Y11, Y11, Y11 // 0x7f

block:
	VPAND 0(R8), Y10, Y0
	LARGER(VPMAXUW, 32(R8), Y10, Y0)
	LARGER(VPMAXUW, 64(R8), Y10, Y0)
	LARGER(VPMAXUW, 96(R8), Y10, Y0)
	LARGER(VPMAXUW, 128(R8), Y10, Y0)
	LARGER(VPMAXUW, 160(R8), Y10, Y0)
	LARGER(VPMAXUW, 192(R8), Y10, Y0)
	LARGER(VPMAXUW, 224(R8), Y10, Y0)
	LARGER(VPMAXUW, 256(R8), Y10, Y0)
	LARGER(VPMAXUW, 288(R8), Y10, Y0)
	LARGER(VPMAXUW, 320(R8), Y10, Y0)
	LARGER(VPMAXUW, 352(R8), Y10, Y0)
	LARGER(VPMAXUW, 384(R8), Y10, Y0)
	LARGER(VPMAXUW, 416(R8), Y10, Y0)
	LARGER(VPMAXUW, 448(R8), Y10, Y0)
	LARGER(VPMAXUW, 480(R8), Y10, Y0)

	VPAND 0(R9), Y11, Y1
	LARGER(VPMAXUB, 32(R9), Y11, Y1)
	LARGER(VPMAXUB, 64(R9), Y11, Y1)
	LARGER(VPMAXUB, 96(R9), Y11, Y1)
	LARGER(VPMAXUB, 128(R9), Y11, Y1)
	LARGER(VPMAXUB, 160(R9), Y11, Y1)
	LARGER(VPMAXUB, 192(R9), Y11, Y1)
	LARGER(VPMAXUB, 224(R9), Y11, Y1)

	VMOVDQU 0(R10), Y2
	VMOVDQA Y2, Y3
	RANGE(32(R10))
	RANGE(64(R10))
	RANGE(96(R10))
	RANGE(128(R10))
	RANGE(160(R10))
	RANGE(192(R10))
	RANGE(224(R10))
	STORE_EXTENTS
