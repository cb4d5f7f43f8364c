//go:build !noasm

#include "../simd/neon_arm64.h"
#include "textflag.h"

// The accumulators are V0-V23, four per row of the tile; V24-V27 hold a row of B, V28-V31
// alternately an element of A. A scalar load and FMLA by element replace a broadcast load,
// which takes a slot of the vector unit on Arm's own cores.

#define STEP(row, x, fx, c0, c1, c2, c3) \
	FMOVS (row)(R4), fx \
	VFMLA0(x, 24, c0) \
	VFMLA0(x, 25, c1) \
	VFMLA0(x, 26, c2) \
	VFMLA0(x, 27, c3)

#define LOAD4(c0, c1, c2, c3) \
	VLD1 (R2), [c0.S4, c1.S4, c2.S4, c3.S4] \
	ADD  R12, R2

// STORE4 stores a row and jumps to done after the last one; R15 counts rows.
#define STORE4(c0, c1, c2, c3) \
	VST1 [c0.S4, c1.S4, c2.S4, c3.S4], (R3) \
	ADD  R12, R3 \
	SUBS $1, R15 \
	BEQ  done

#define ZERO4(c0, c1, c2, c3) \
	VEOR c0.B16, c0.B16, c0.B16 \
	VEOR c1.B16, c1.B16, c1.B16 \
	VEOR c2.B16, c2.B16, c2.B16 \
	VEOR c3.B16, c3.B16, c3.B16

// R0 steps left; R1 a row of B, R14 its step in bytes; R3 a row of c, R12 its step; R4
// offset of a column of A in its row, R5 the step of columns; R6-R11 the rows of A.
//
// func pool.Multiply6x16NEON(k, rows int, a *float32, step, stepK int, b *float32, ldb int, c *float32, ldc int, load bool)
TEXT ·Multiply6x16NEON(SB), NOSPLIT, $0-73
	MOVD  k+0(FP), R0
	MOVD  rows+8(FP), R15
	MOVD  a+16(FP), R6
	MOVD  step+24(FP), R12
	MOVD  stepK+32(FP), R5
	ADD   R12<<2, R6, R7
	ADD   R12<<2, R7, R8
	ADD   R12<<2, R8, R9
	ADD   R12<<2, R9, R10
	ADD   R12<<2, R10, R11
	LSL   $2, R5
	MOVD  ZR, R4
	MOVD  b+40(FP), R1
	MOVD  ldb+48(FP), R14
	LSL   $2, R14
	MOVD  c+56(FP), R3
	MOVD  R3, R2
	MOVD  ldc+64(FP), R12
	LSL   $2, R12
	MOVBU load+72(FP), R13

	CBZ R13, zero
	LOAD4(V0, V1, V2, V3)
	LOAD4(V4, V5, V6, V7)
	LOAD4(V8, V9, V10, V11)
	LOAD4(V12, V13, V14, V15)
	LOAD4(V16, V17, V18, V19)
	LOAD4(V20, V21, V22, V23)
	B start

zero:
	ZERO4(V0, V1, V2, V3)
	ZERO4(V4, V5, V6, V7)
	ZERO4(V8, V9, V10, V11)
	ZERO4(V12, V13, V14, V15)
	ZERO4(V16, V17, V18, V19)
	ZERO4(V20, V21, V22, V23)

start:
	CBZ R0, store
	PCALIGN $32

loop:
	FLDPQ (R1), (F24, F25)
	FLDPQ 32(R1), (F26, F27)
	STEP(R6, 28, F28, 0, 1, 2, 3)
	STEP(R7, 29, F29, 4, 5, 6, 7)
	STEP(R8, 30, F30, 8, 9, 10, 11)
	STEP(R9, 31, F31, 12, 13, 14, 15)
	STEP(R10, 28, F28, 16, 17, 18, 19)
	STEP(R11, 29, F29, 20, 21, 22, 23)
	ADD  R14, R1
	ADD  R5, R4
	SUBS $1, R0
	BNE  loop

store:
	STORE4(V0, V1, V2, V3)
	STORE4(V4, V5, V6, V7)
	STORE4(V8, V9, V10, V11)
	STORE4(V12, V13, V14, V15)
	STORE4(V16, V17, V18, V19)
	STORE4(V20, V21, V22, V23)

done:
	RET
