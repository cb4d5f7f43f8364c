//go:build !noasm

#include "multiply_avx512_amd64.h"
#include "textflag.h"

// VPDPBUSD multiplies unsigned bytes of A, offset by 128, with signed bytes of B. So sums
// begin at minus 128 times the sum of the bytes of B in their column.

#define DOT(row, addr, x, c0, c1) \
	VBROADCASTSS addr, x \
	VPDPBUSD     Z28, x, c0 \
	VPDPBUSD     Z29, x, c1

#define BEGINZ2(i, c0, c1) \
	VMOVDQA64 Z28, c0 \
	VMOVDQA64 Z29, c1

#define RESUMEZ2(i, c0, c1) \
	VPADDD (128*i)(DI), Z28, c0 \
	VPADDD (128*i+64)(DI), Z29, c1

// COLUMNS sets Z28 and Z29 to the sums' beginnings. Eight accumulators hide the latency.
#define COLUMNS \
	MOVL         $0x80808080, R13 \
	VPBROADCASTD R13, Z31 \
	VPXORD       Z0, Z0, Z0 \
	VPXORD       Z1, Z1, Z1 \
	VPXORD       Z2, Z2, Z2 \
	VPXORD       Z3, Z3, Z3 \
	VPXORD       Z4, Z4, Z4 \
	VPXORD       Z5, Z5, Z5 \
	VPXORD       Z6, Z6, Z6 \
	VPXORD       Z7, Z7, Z7 \
	MOVQ         AX, R13 \
	SUBQ         $4, R13 \
	JLT          remainder \
columns4: \
	VPDPBUSD (DX), Z31, Z0 \
	VPDPBUSD 64(DX), Z31, Z1 \
	VPDPBUSD 128(DX), Z31, Z2 \
	VPDPBUSD 192(DX), Z31, Z3 \
	VPDPBUSD 256(DX), Z31, Z4 \
	VPDPBUSD 320(DX), Z31, Z5 \
	VPDPBUSD 384(DX), Z31, Z6 \
	VPDPBUSD 448(DX), Z31, Z7 \
	ADDQ     $512, DX \
	SUBQ     $4, R13 \
	JGE      columns4 \
remainder: \
	ADDQ $4, R13 \
	JZ   columns \
column: \
	VPDPBUSD (DX), Z31, Z0 \
	VPDPBUSD 64(DX), Z31, Z1 \
	ADDQ     $128, DX \
	DECQ     R13 \
	JNZ      column \
columns: \
	VPADDD Z2, Z0, Z0 \
	VPADDD Z3, Z1, Z1 \
	VPADDD Z4, Z6, Z4 \
	VPADDD Z5, Z7, Z5 \
	VPADDD Z4, Z0, Z0 \
	VPADDD Z5, Z1, Z1 \
	VPXORD Z31, Z31, Z31 \
	VPSUBD Z0, Z31, Z28 \
	VPSUBD Z1, Z31, Z29 \
	MOVQ   b+32(FP), DX

// MULTIPLY_INTEGERS is MULTIPLY with these beginnings.
#define MULTIPLY_INTEGERS(rows, steps) \
	MOVQ k+0(FP), AX \
	MOVQ a+8(FP), R8 \
	MOVQ step+16(FP), BX \
	MOVQ stepK+24(FP), CX \
	MOVQ b+32(FP), DX \
	MOVQ c+40(FP), DI \
	SHLQ $2, BX \
	SHLQ $2, CX \
	LEAQ (BX)(BX*2), SI \
	LEAQ (R8)(SI*1), R9 \
	LEAQ (R9)(SI*1), R10 \
	LEAQ (R10)(SI*1), R11 \
	LEAQ (R11)(SI*1), R12 \
	COLUMNS \
	CMPB load+48(FP), $0 \
	JEQ  zero \
	rows(RESUMEZ2) \
	JMP  start \
zero: \
	rows(BEGINZ2) \
start: \
	TESTQ AX, AX \
	JZ   store \
	PCALIGN $32 \
loop: \
	VMOVDQU64 (DX), Z28 \
	VMOVDQU64 64(DX), Z29 \
	steps(DOT) \
	ADDQ $128, DX \
	DECQ AX \
	JNZ  loop \
store: \
	rows(STORE2) \
	VZEROUPPER \
	RET

// func multiply14x32VNNI(k int, a *float32, step, stepK int, b, c *float32, load bool)
TEXT ·multiply14x32VNNI(SB), NOSPLIT, $0-49
	MULTIPLY_INTEGERS(ROWS14, STEPS14)

// func multiply8x32VNNI(k int, a *float32, step, stepK int, b, c *float32, load bool)
TEXT ·multiply8x32VNNI(SB), NOSPLIT, $0-49
	MULTIPLY_INTEGERS(ROWS8, STEPS8)

// func multiply4x32VNNI(k int, a *float32, step, stepK int, b, c *float32, load bool)
TEXT ·multiply4x32VNNI(SB), NOSPLIT, $0-49
	MULTIPLY_INTEGERS(ROWS4, STEPS4)

// DOTY is VPDPBUSD Y(b), Y(a), Y(c), given register numbers. It is encoded in bytes because
// the assembler has only AVX-512's: VEX.256.66.0F38.W0 50 /r (Intel SDM, volume 2). The
// prefix has the inverted upper bits of the register numbers.
#define DOTY(b, a, c) \
	BYTE $0xc4 \
	BYTE $(((~(c)&8)<<4) | 0x40 | ((~(b)&8)<<2) | 2) \
	BYTE $(((~(a)&15)<<3) | 5) \
	BYTE $0x50 \
	BYTE $(0xc0 | (((c)&7)<<3) | ((b)&7))

// Registers are those of multiply6x16AVX2.
#define STEP(addr, c0, c1) \
	VBROADCASTSS addr, Y14 \
	DOTY(12, 14, c0) \
	DOTY(13, 14, c1)

#define BEGIN2(c0, c1) \
	VMOVDQA Y12, c0 \
	VMOVDQA Y13, c1

#define RESUME2(i, c0, c1) \
	VPADDD (64*i)(DI), Y12, c0 \
	VPADDD (64*i+32)(DI), Y13, c1

#define STOREY2(i, c0, c1) \
	VMOVDQU c0, (64*i)(DI) \
	VMOVDQU c1, (64*i+32)(DI)

// func multiply6x16VNNI(k, rows int, a *float32, step, stepK int, b, c *float32, load bool)
TEXT ·multiply6x16VNNI(SB), NOSPLIT, $64-57
	MOVQ    rows+8(FP), R13
	MOVQ    a+16(FP), R10
	MOVQ    step+24(FP), BX
	MOVQ    stepK+32(FP), CX
	MOVQ    b+40(FP), R11
	MOVQ    c+48(FP), DI
	MOVBLZX load+56(FP), R12
	SHLQ    $2, BX
	SHLQ    $2, CX
	LEAQ    (BX)(BX*2), SI

	MOVL         $0x80808080, AX
	VMOVD        AX, X14
	VPBROADCASTD X14, Y14
	VPXOR        Y0, Y0, Y0
	VPXOR        Y1, Y1, Y1
	MOVQ         k+0(FP), AX
	MOVQ         R11, DX
	TESTQ        AX, AX
	JZ           columns

column:
	VMOVDQU (DX), Y12
	VMOVDQU 32(DX), Y13
	DOTY(12, 14, 0)
	DOTY(13, 14, 1)
	ADDQ $64, DX
	DECQ AX
	JNZ  column

columns:
	VPXOR   Y2, Y2, Y2
	VPSUBD  Y0, Y2, Y0
	VPSUBD  Y1, Y2, Y1
	VMOVDQU Y0, start-64(SP)
	VMOVDQU Y1, start-32(SP)

tile:
	VMOVDQU start-64(SP), Y12
	VMOVDQU start-32(SP), Y13
	MOVQ    k+0(FP), AX
	MOVQ    R11, DX
	MOVQ    R10, R8
	LEAQ    (R10)(SI*1), R9
	TESTL   R12, R12
	JEQ     zero
	RESUME2(0, Y0, Y1)
	RESUME2(1, Y2, Y3)
	RESUME2(2, Y4, Y5)
	RESUME2(3, Y6, Y7)
	RESUME2(4, Y8, Y9)
	RESUME2(5, Y10, Y11)
	JMP start

zero:
	BEGIN2(Y0, Y1)
	BEGIN2(Y2, Y3)
	BEGIN2(Y4, Y5)
	BEGIN2(Y6, Y7)
	BEGIN2(Y8, Y9)
	BEGIN2(Y10, Y11)

start:
	TESTQ AX, AX
	JZ    store
	PCALIGN $64

loop:
	VMOVDQU (DX), Y12
	VMOVDQU 32(DX), Y13
	STEP((R8), 0, 1)
	STEP((R8)(BX*1), 2, 3)
	STEP((R8)(BX*2), 4, 5)
	STEP((R9), 6, 7)
	STEP((R9)(BX*1), 8, 9)
	STEP((R9)(BX*2), 10, 11)
	ADDQ $64, DX
	ADDQ CX, R8
	ADDQ CX, R9
	DECQ AX
	JNZ  loop

store:
	STOREY2(0, Y0, Y1)
	STOREY2(1, Y2, Y3)
	STOREY2(2, Y4, Y5)
	STOREY2(3, Y6, Y7)
	STOREY2(4, Y8, Y9)
	STOREY2(5, Y10, Y11)
	ADDQ $384, DI
	LEAQ (R10)(SI*2), R10
	SUBQ $6, R13
	JGT  tile
	VZEROUPPER
	RET

// interleave4x16 writes words of four bytes, of four rows.
//
// func interleave4x16(dst *float32, codes *uint8, ld int)
TEXT ·interleave4x16(SB), NOSPLIT, $0-24
	MOVQ       dst+0(FP), DI
	MOVQ       codes+8(FP), SI
	MOVQ       ld+16(FP), AX
	LEAQ       (AX)(AX*2), DX
	VMOVDQU    (SI), X0
	VMOVDQU    (SI)(AX*1), X1
	VMOVDQU    (SI)(AX*2), X2
	VMOVDQU    (SI)(DX*1), X3
	VPUNPCKLBW X1, X0, X4
	VPUNPCKHBW X1, X0, X5
	VPUNPCKLBW X3, X2, X6
	VPUNPCKHBW X3, X2, X7
	VPUNPCKLWD X6, X4, X0
	VPUNPCKHWD X6, X4, X1
	VPUNPCKLWD X7, X5, X2
	VPUNPCKHWD X7, X5, X3
	VMOVDQU    X0, (DI)
	VMOVDQU    X1, 16(DI)
	VMOVDQU    X2, 32(DI)
	VMOVDQU    X3, 48(DI)
	RET

// func offsetWordsAVX2(words *float32, n int)
TEXT ·offsetWordsAVX2(SB), NOSPLIT, $0-16
	MOVQ         words+0(FP), DI
	MOVQ         n+8(FP), CX
	MOVL         $0x80808080, AX
	VMOVD        AX, X1
	VPBROADCASTD X1, Y1

offset:
	VPXOR   (DI), Y1, Y0
	VMOVDQU Y0, (DI)
	ADDQ    $32, DI
	SUBQ    $8, CX
	JGT     offset
	VZEROUPPER
	RET
