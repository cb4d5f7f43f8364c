//go:build !noasm

#include "textflag.h"

// The accumulators are Y0-Y11, two per row; Y12 and Y13 hold a row of b, Y14 and Y15
// alternately an element of a.

#define STEP(addr, x, c0, c1) \
	VBROADCASTSS addr, x \
	VFMADD231PS  Y12, x, c0 \
	VFMADD231PS  Y13, x, c1

#define LOAD(c0, c1) \
	VMOVUPS (DI), c0 \
	VMOVUPS 32(DI), c1 \
	ADDQ    R13, DI

// STORE stores a row and jumps to done after the last one; R8 counts rows.
#define STORE(c0, c1) \
	VMOVUPS c0, (DI) \
	VMOVUPS c1, 32(DI) \
	ADDQ    R13, DI \
	DECQ    R8 \
	JZ      done

#define ZERO(c0, c1) \
	VXORPS c0, c0, c0 \
	VXORPS c1, c1, c1

#define ROWS(do) \
	do(Y0, Y1) \
	do(Y2, Y3) \
	do(Y4, Y5) \
	do(Y6, Y7) \
	do(Y8, Y9) \
	do(Y10, Y11)

// func multiplyInto6x16AVX2(k, rows, cols int, a *float32, step, stepK int, b *float32, ldb int, c *float32, ldc int, load bool)
TEXT ·multiplyInto6x16AVX2(SB), NOSPLIT, $0-81
	MOVQ step+32(FP), BX
	MOVQ stepK+40(FP), CX
	MOVQ ldb+56(FP), SI
	MOVQ ldc+72(FP), R13
	SHLQ $2, BX
	SHLQ $2, CX
	SHLQ $2, SI
	SHLQ $2, R13
	MOVQ cols+16(FP), R10

panel:
	MOVQ a+24(FP), R8
	MOVQ b+48(FP), DX
	MOVQ c+64(FP), DI
	LEAQ (R8)(BX*2), R9
	ADDQ BX, R9

	CMPB load+80(FP), $0
	JEQ  zero
	ROWS(LOAD)
	JMP  start

zero:
	ROWS(ZERO)

start:
	MOVQ k+0(FP), AX
	PCALIGN $64

loop:
	VMOVUPS (DX), Y12
	VMOVUPS 32(DX), Y13
	STEP((R8), Y14, Y0, Y1)
	STEP((R8)(BX*1), Y15, Y2, Y3)
	STEP((R8)(BX*2), Y14, Y4, Y5)
	STEP((R9), Y15, Y6, Y7)
	STEP((R9)(BX*1), Y14, Y8, Y9)
	STEP((R9)(BX*2), Y15, Y10, Y11)
	ADDQ SI, DX
	ADDQ CX, R8
	ADDQ CX, R9
	DECQ AX
	JNZ  loop

	MOVQ c+64(FP), DI
	MOVQ rows+8(FP), R8
	ROWS(STORE)

done:
	ADDQ $64, b+48(FP)
	ADDQ $64, c+64(FP)
	SUBQ $16, R10
	JGT  panel
	VZEROUPPER
	RET
