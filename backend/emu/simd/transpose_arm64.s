//go:build !noasm

#include "textflag.h"

// SWAP transposes the 2×2 blocks of elements, of the given size, in rows a and b. A
// transpose is SWAPs of rows 1, 2, 4 and 8 apart, with elements that double in size each
// time.
#define SWAP(a, b, x, y, size) \
	VTRN1 b.size, a.size, x.size \
	VTRN2 b.size, a.size, y.size

// R2 and R3 are the bytes between rows of dst and src, R4 and R5 the numbers of blocks of
// rows and of columns. R0 and R1 point to the first block of a block of columns in dst
// and src. R8 counts its blocks; R6 points to a block in dst and R9 to a row of it; R10
// moves through the rows of all its blocks in src.

#define SETUP(log) \
	MOVD dst+0(FP), R0 \
	MOVD ld+8(FP), R2 \
	MOVD src+16(FP), R1 \
	MOVD step+24(FP), R3 \
	MOVD rows+32(FP), R4 \
	MOVD cols+40(FP), R5 \
	LSL  $log, R2 \
	LSL  $log, R3

// func transpose8Vectors(dst *uint8, ld int, src *uint8, step, rows, cols int, stream bool)
TEXT ·transpose8Vectors(SB), NOSPLIT, $0-49
	SETUP(0)
	LSR $4, R4
	LSR $4, R5

columns:
	MOVD R0, R6
	MOVD R1, R10
	MOVD R4, R8

block:
	MOVD R6, R9
	VLD1.P (R10)(R3), [V0.B16]
	VLD1.P (R10)(R3), [V1.B16]
	VLD1.P (R10)(R3), [V2.B16]
	VLD1.P (R10)(R3), [V3.B16]
	VLD1.P (R10)(R3), [V4.B16]
	VLD1.P (R10)(R3), [V5.B16]
	VLD1.P (R10)(R3), [V6.B16]
	VLD1.P (R10)(R3), [V7.B16]
	VLD1.P (R10)(R3), [V8.B16]
	VLD1.P (R10)(R3), [V9.B16]
	VLD1.P (R10)(R3), [V10.B16]
	VLD1.P (R10)(R3), [V11.B16]
	VLD1.P (R10)(R3), [V12.B16]
	VLD1.P (R10)(R3), [V13.B16]
	VLD1.P (R10)(R3), [V14.B16]
	VLD1.P (R10)(R3), [V15.B16]
	SWAP(V0, V1, V16, V17, B16)
	SWAP(V2, V3, V18, V19, B16)
	SWAP(V4, V5, V20, V21, B16)
	SWAP(V6, V7, V22, V23, B16)
	SWAP(V8, V9, V24, V25, B16)
	SWAP(V10, V11, V26, V27, B16)
	SWAP(V12, V13, V28, V29, B16)
	SWAP(V14, V15, V30, V31, B16)
	SWAP(V16, V18, V0, V2, H8)
	SWAP(V17, V19, V1, V3, H8)
	SWAP(V20, V22, V4, V6, H8)
	SWAP(V21, V23, V5, V7, H8)
	SWAP(V24, V26, V8, V10, H8)
	SWAP(V25, V27, V9, V11, H8)
	SWAP(V28, V30, V12, V14, H8)
	SWAP(V29, V31, V13, V15, H8)
	SWAP(V0, V4, V16, V20, S4)
	SWAP(V1, V5, V17, V21, S4)
	SWAP(V2, V6, V18, V22, S4)
	SWAP(V3, V7, V19, V23, S4)
	SWAP(V8, V12, V24, V28, S4)
	SWAP(V9, V13, V25, V29, S4)
	SWAP(V10, V14, V26, V30, S4)
	SWAP(V11, V15, V27, V31, S4)
	SWAP(V16, V24, V0, V8, D2)
	SWAP(V17, V25, V1, V9, D2)
	SWAP(V18, V26, V2, V10, D2)
	SWAP(V19, V27, V3, V11, D2)
	SWAP(V20, V28, V4, V12, D2)
	SWAP(V21, V29, V5, V13, D2)
	SWAP(V22, V30, V6, V14, D2)
	SWAP(V23, V31, V7, V15, D2)
	VST1.P [V0.B16], (R9)(R2)
	VST1.P [V1.B16], (R9)(R2)
	VST1.P [V2.B16], (R9)(R2)
	VST1.P [V3.B16], (R9)(R2)
	VST1.P [V4.B16], (R9)(R2)
	VST1.P [V5.B16], (R9)(R2)
	VST1.P [V6.B16], (R9)(R2)
	VST1.P [V7.B16], (R9)(R2)
	VST1.P [V8.B16], (R9)(R2)
	VST1.P [V9.B16], (R9)(R2)
	VST1.P [V10.B16], (R9)(R2)
	VST1.P [V11.B16], (R9)(R2)
	VST1.P [V12.B16], (R9)(R2)
	VST1.P [V13.B16], (R9)(R2)
	VST1.P [V14.B16], (R9)(R2)
	VST1.P [V15.B16], (R9)(R2)
	ADD  $16, R6
	SUBS $1, R8
	BNE  block
	ADD  R2<<4, R0
	ADD  $16, R1
	SUBS $1, R5
	BNE  columns
	RET

// func transpose16Vectors(dst *uint16, ld int, src *uint16, step, rows, cols int)
TEXT ·transpose16Vectors(SB), NOSPLIT, $0-48
	SETUP(1)
	LSR $3, R4
	LSR $3, R5

columns:
	MOVD R0, R6
	MOVD R1, R10
	MOVD R4, R8

block:
	MOVD R6, R9
	VLD1.P (R10)(R3), [V0.H8]
	VLD1.P (R10)(R3), [V1.H8]
	VLD1.P (R10)(R3), [V2.H8]
	VLD1.P (R10)(R3), [V3.H8]
	VLD1.P (R10)(R3), [V4.H8]
	VLD1.P (R10)(R3), [V5.H8]
	VLD1.P (R10)(R3), [V6.H8]
	VLD1.P (R10)(R3), [V7.H8]
	SWAP(V0, V1, V16, V17, H8)
	SWAP(V2, V3, V18, V19, H8)
	SWAP(V4, V5, V20, V21, H8)
	SWAP(V6, V7, V22, V23, H8)
	SWAP(V16, V18, V0, V2, S4)
	SWAP(V17, V19, V1, V3, S4)
	SWAP(V20, V22, V4, V6, S4)
	SWAP(V21, V23, V5, V7, S4)
	SWAP(V0, V4, V16, V20, D2)
	SWAP(V1, V5, V17, V21, D2)
	SWAP(V2, V6, V18, V22, D2)
	SWAP(V3, V7, V19, V23, D2)
	VST1.P [V16.H8], (R9)(R2)
	VST1.P [V17.H8], (R9)(R2)
	VST1.P [V18.H8], (R9)(R2)
	VST1.P [V19.H8], (R9)(R2)
	VST1.P [V20.H8], (R9)(R2)
	VST1.P [V21.H8], (R9)(R2)
	VST1.P [V22.H8], (R9)(R2)
	VST1.P [V23.H8], (R9)(R2)
	ADD  $16, R6
	SUBS $1, R8
	BNE  block
	ADD  R2<<3, R0
	ADD  $16, R1
	SUBS $1, R5
	BNE  columns
	RET
