//go:build !noasm

#include "textflag.h"

// The accumulators are Y0-Y11, two per row of the tile; Y12 and Y13 hold a row of B, Y14 a
// word of A, then products, as does Y15. On Zen 3 VPBROADCASTD from memory is slower than
// VBROADCASTSS.

#define STEP(addr, c0, c1) \
	VBROADCASTSS addr, Y14 \
	VPMADDWD     Y12, Y14, Y15 \
	VPADDD       Y15, c0, c0 \
	VPMADDWD     Y13, Y14, Y14 \
	VPADDD       Y14, c1, c1

#define LOAD2(i, c0, c1) \
	VMOVDQU (64*i)(DI), c0 \
	VMOVDQU (64*i+32)(DI), c1

#define STORE2(i, c0, c1) \
	VMOVDQU c0, (64*i)(DI) \
	VMOVDQU c1, (64*i+32)(DI)

#define ZERO2(c0, c1) \
	VPXOR c0, c0, c0 \
	VPXOR c1, c1, c1

// Registers are those of multiply6x16AVX2.
//
// func multiplyIntegers6x16AVX2(k, rows int, a *float32, step, stepK int, b, c *float32, load bool)
TEXT ·multiplyIntegers6x16AVX2(SB), NOSPLIT, $0-57
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

tile:
	MOVQ  k+0(FP), AX
	MOVQ  R11, DX
	MOVQ  R10, R8
	LEAQ  (R10)(SI*1), R9
	TESTL R12, R12
	JEQ   zero
	LOAD2(0, Y0, Y1)
	LOAD2(1, Y2, Y3)
	LOAD2(2, Y4, Y5)
	LOAD2(3, Y6, Y7)
	LOAD2(4, Y8, Y9)
	LOAD2(5, Y10, Y11)
	JMP start

zero:
	ZERO2(Y0, Y1)
	ZERO2(Y2, Y3)
	ZERO2(Y4, Y5)
	ZERO2(Y6, Y7)
	ZERO2(Y8, Y9)
	ZERO2(Y10, Y11)

start:
	TESTQ AX, AX
	JZ    store
	PCALIGN $64

loop:
	VMOVDQU (DX), Y12
	VMOVDQU 32(DX), Y13
	STEP((R8), Y0, Y1)
	STEP((R8)(BX*1), Y2, Y3)
	STEP((R8)(BX*2), Y4, Y5)
	STEP((R9), Y6, Y7)
	STEP((R9)(BX*1), Y8, Y9)
	STEP((R9)(BX*2), Y10, Y11)
	ADDQ $64, DX
	ADDQ CX, R8
	ADDQ CX, R9
	DECQ AX
	JNZ  loop

store:
	STORE2(0, Y0, Y1)
	STORE2(1, Y2, Y3)
	STORE2(2, Y4, Y5)
	STORE2(3, Y6, Y7)
	STORE2(4, Y8, Y9)
	STORE2(5, Y10, Y11)
	ADDQ $384, DI
	LEAQ (R10)(SI*2), R10
	SUBQ $6, R13
	JGT  tile
	VZEROUPPER
	RET

// func integersAlongAVX2(dst *float32, codes *uint8, n int)
TEXT ·integersAlongAVX2(SB), NOSPLIT, $0-24
	MOVQ dst+0(FP), DI
	MOVQ codes+8(FP), SI
	MOVQ n+16(FP), CX

along:
	VPMOVSXBW (SI), Y0
	VMOVDQU   Y0, (DI)
	ADDQ      $16, SI
	ADDQ      $32, DI
	SUBQ      $16, CX
	JGT       along
	VZEROUPPER
	RET

// func integersDownAVX2(dst *float32, codes *uint8, ld int)
TEXT ·integersDownAVX2(SB), NOSPLIT, $0-24
	MOVQ       dst+0(FP), DI
	MOVQ       codes+8(FP), SI
	MOVQ       ld+16(FP), AX
	VMOVDQU    (SI), X0
	VMOVDQU    (SI)(AX*1), X1
	VPUNPCKLBW X1, X0, X2
	VPUNPCKHBW X1, X0, X3
	VPMOVSXBW  X2, Y2
	VPMOVSXBW  X3, Y3
	VMOVDQU    Y2, (DI)
	VMOVDQU    Y3, 32(DI)
	VZEROUPPER
	RET
