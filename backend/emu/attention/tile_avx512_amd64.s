//go:build !noasm

#include "textflag.h"

// The GEMM's kernels for row-major b and c. The accumulators are Z0-Z27, two per row; Z28
// and Z29 hold a row of b, Z30 and Z31 alternately an element of a. R8 to R12 are three rows
// of a apart; BX and 2·BX reach the two rows after each.

#define BEGIN \
	MOVQ step+32(FP), BX \
	MOVQ stepK+40(FP), CX \
	MOVQ ldb+56(FP), SI \
	MOVQ ldc+72(FP), R13 \
	SHLQ $2, BX \
	SHLQ $2, CX \
	SHLQ $2, SI \
	SHLQ $2, R13

#define BEGIN_PANEL \
	MOVQ a+24(FP), R8 \
	MOVQ b+48(FP), DX \
	MOVQ c+64(FP), DI \
	LEAQ (BX)(BX*2), R12 \
	LEAQ (R8)(R12*1), R9 \
	LEAQ (R9)(R12*1), R10 \
	LEAQ (R10)(R12*1), R11 \
	ADDQ R11, R12

#define LOAD(c0, c1) \
	VMOVUPS (DI), c0 \
	VMOVUPS 64(DI), c1 \
	ADDQ    R13, DI

// STORE stores a row and jumps to done after the last one; R8 counts rows.
#define STORE(c0, c1) \
	VMOVUPS c0, (DI) \
	VMOVUPS c1, 64(DI) \
	ADDQ    R13, DI \
	DECQ    R8 \
	JZ      done

#define ZERO(c0, c1) \
	VPXORD c0, c0, c0 \
	VPXORD c1, c1, c1

#define ROWS4(do) \
	do(Z0, Z1) \
	do(Z2, Z3) \
	do(Z4, Z5) \
	do(Z6, Z7)

#define ROWS8(do) \
	ROWS4(do) \
	do(Z8, Z9) \
	do(Z10, Z11) \
	do(Z12, Z13) \
	do(Z14, Z15)

#define ROWS14(do) \
	ROWS8(do) \
	do(Z16, Z17) \
	do(Z18, Z19) \
	do(Z20, Z21) \
	do(Z22, Z23) \
	do(Z24, Z25) \
	do(Z26, Z27)

// A step multiplies the elements of a in one column by a row of b. do(row, element of a, its
// register, accumulators) is FMA or DOT.

#define STEPS4(do) \
	do(0, (R8), Z30, Z0, Z1) \
	do(1, (R8)(BX*1), Z31, Z2, Z3) \
	do(2, (R8)(BX*2), Z30, Z4, Z5) \
	do(3, (R9), Z31, Z6, Z7)

#define STEPS8(do) \
	STEPS4(do) \
	do(4, (R9)(BX*1), Z30, Z8, Z9) \
	do(5, (R9)(BX*2), Z31, Z10, Z11) \
	do(6, (R10), Z30, Z12, Z13) \
	do(7, (R10)(BX*1), Z31, Z14, Z15)

// Rows of b that are in the second-level cache are prefetched eight steps, or a hundred
// cycles, ahead.
#define STEPS14(do) \
	PREFETCHT0 (DX)(SI*8) \
	PREFETCHT0 64(DX)(SI*8) \
	STEPS8(do) \
	do(8, (R10)(BX*2), Z30, Z16, Z17) \
	do(9, (R11), Z31, Z18, Z19) \
	do(10, (R11)(BX*1), Z30, Z20, Z21) \
	do(11, (R11)(BX*2), Z31, Z22, Z23) \
	do(12, (R12), Z30, Z24, Z25) \
	do(13, (R12)(BX*1), Z31, Z26, Z27)

#define FMA(row, addr, x, c0, c1) \
	VBROADCASTSS addr, x \
	VFMADD231PS  Z28, x, c0 \
	VFMADD231PS  Z29, x, c1

// DOT multiplies words of pairs: VDPBF16PS c, b, x with given register numbers, encoded as in
// gemm/pairs_avx512_amd64.s.
#define DOT(row, addr, x, c0, c1) \
	VBROADCASTSS addr, x \
	VDPBF16PS(2*row, 28, 30+(row&1)) \
	VDPBF16PS(2*row+1, 29, 30+(row&1))

#define VDPBF16PS(c, b, x) \
	BYTE $0x62 \
	BYTE $(((~(c)&8)<<4) | ((~(x)&16)<<2) | ((~(x)&8)<<2) | (~(c)&16) | 2) \
	BYTE $(((~(b)&15)<<3) | 6) \
	BYTE $(0x40 | ((~(b)&16)>>1)) \
	BYTE $0x52 \
	BYTE $(0xc0 | (((c)&7)<<3) | ((x)&7))

#define MULTIPLY_INTO(each, steps, do) \
	BEGIN \
panel: \
	BEGIN_PANEL \
	CMPB load+80(FP), $0 \
	JEQ  zero \
	each(LOAD) \
	JMP  start \
zero: \
	each(ZERO) \
start: \
	MOVQ k+0(FP), AX \
	PCALIGN $32 \
loop: \
	VMOVUPS (DX), Z28 \
	VMOVUPS 64(DX), Z29 \
	steps(do) \
	ADDQ SI, DX \
	ADDQ CX, R8 \
	ADDQ CX, R9 \
	ADDQ CX, R10 \
	ADDQ CX, R11 \
	ADDQ CX, R12 \
	DECQ AX \
	JNZ  loop \
	MOVQ c+64(FP), DI \
	MOVQ rows+8(FP), R8 \
	each(STORE) \
done: \
	ADDQ $128, b+48(FP) \
	ADDQ $128, c+64(FP) \
	SUBQ $32, cols+16(FP) \
	JGT  panel \
	VZEROUPPER \
	RET

// func multiplyInto14x32AVX512(k, rows, cols int, a *float32, step, stepK int, b *float32, ldb int, c *float32, ldc int, load bool)
TEXT ·multiplyInto14x32AVX512(SB), NOSPLIT, $0-81
	MULTIPLY_INTO(ROWS14, STEPS14, FMA)

// func multiplyInto8x32AVX512(k, rows, cols int, a *float32, step, stepK int, b *float32, ldb int, c *float32, ldc int, load bool)
TEXT ·multiplyInto8x32AVX512(SB), NOSPLIT, $0-81
	MULTIPLY_INTO(ROWS8, STEPS8, FMA)

// func multiplyInto4x32AVX512(k, rows, cols int, a *float32, step, stepK int, b *float32, ldb int, c *float32, ldc int, load bool)
TEXT ·multiplyInto4x32AVX512(SB), NOSPLIT, $0-81
	MULTIPLY_INTO(ROWS4, STEPS4, FMA)

// func multiplyInto14x32BF16(k, rows, cols int, a *float32, step, stepK int, b *float32, ldb int, c *float32, ldc int, load bool)
TEXT ·multiplyInto14x32BF16(SB), NOSPLIT, $0-81
	MULTIPLY_INTO(ROWS14, STEPS14, DOT)

// func multiplyInto8x32BF16(k, rows, cols int, a *float32, step, stepK int, b *float32, ldb int, c *float32, ldc int, load bool)
TEXT ·multiplyInto8x32BF16(SB), NOSPLIT, $0-81
	MULTIPLY_INTO(ROWS8, STEPS8, DOT)

// func multiplyInto4x32BF16(k, rows, cols int, a *float32, step, stepK int, b *float32, ldb int, c *float32, ldc int, load bool)
TEXT ·multiplyInto4x32BF16(SB), NOSPLIT, $0-81
	MULTIPLY_INTO(ROWS4, STEPS4, DOT)
