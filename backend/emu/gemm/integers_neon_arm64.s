//go:build !noasm

#include "textflag.h"

// SDOT d.4S, n.16B, m.4B[0], given register numbers: the assembler lacks it.
#define VSDOT0(m, n, d) WORD $(0x4f80e000 | (m)<<16 | (n)<<5 | (d))

// The accumulators are V0-V23, four per row of the tile; V24-V27 hold a row of B, V28-V31
// alternately a word of A.

#define STEP(row, x, fx, c0, c1, c2, c3) \
	FMOVS (row)(R4), fx \
	VSDOT0(x, 24, c0) \
	VSDOT0(x, 25, c1) \
	VSDOT0(x, 26, c2) \
	VSDOT0(x, 27, c3)

#define LOAD4(c0, c1, c2, c3) \
	VLD1.P 64(R2), [c0.S4, c1.S4, c2.S4, c3.S4]

// STORE4 stores a row and jumps to done after the last one; R15 counts rows.
#define STORE4(c0, c1, c2, c3) \
	VST1.P [c0.S4, c1.S4, c2.S4, c3.S4], 64(R3) \
	SUBS   $1, R15 \
	BEQ    done

#define ZERO4(c0, c1, c2, c3) \
	VEOR c0.B16, c0.B16, c0.B16 \
	VEOR c1.B16, c1.B16, c1.B16 \
	VEOR c2.B16, c2.B16, c2.B16 \
	VEOR c3.B16, c3.B16, c3.B16

// Registers are those of Multiply6x16NEON.
//
// func multiplyIntegers6x16NEON(k, rows int, a *float32, step, stepK int, b, c *float32, load bool)
TEXT ·multiplyIntegers6x16NEON(SB), NOSPLIT, $0-57
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
	MOVD  c+48(FP), R3
	MOVD  R3, R2
	MOVBU load+56(FP), R13

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
	ADD  $64, R1
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

// interleave4x16 writes words of four bytes, of four rows.
//
// func interleave4x16(dst *float32, codes *uint8, ld int)
TEXT ·interleave4x16(SB), NOSPLIT, $0-24
	MOVD dst+0(FP), R0
	MOVD codes+8(FP), R1
	MOVD ld+16(FP), R2
	VLD1 (R1), [V0.B16]
	ADD  R2, R1
	VLD1 (R1), [V1.B16]
	ADD  R2, R1
	VLD1 (R1), [V2.B16]
	ADD  R2, R1
	VLD1 (R1), [V3.B16]
	VST4 [V0.B16, V1.B16, V2.B16, V3.B16], (R0)
	RET
