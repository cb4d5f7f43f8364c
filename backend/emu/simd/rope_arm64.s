//go:build !noasm

#include "textflag.h"
#include "neon_arm64.h"

// R0 and R1 point to the first half of a head in dst and x, R5 and R6 to the second.
//
// func rotateVectors(dst, x, cos, sin *float32, heads, half int, sign float32)
TEXT ·rotateVectors(SB), NOSPLIT, $0-52
	MOVD  dst+0(FP), R0
	MOVD  x+8(FP), R1
	MOVD  cos+16(FP), R2
	MOVD  sin+24(FP), R3
	MOVD  heads+32(FP), R9
	MOVD  half+40(FP), R4
	MOVWU sign+48(FP), R5
	VDUP  R5, V30.S4
	LSL   $2, R4
	ADD   R4, R0, R5
	ADD   R4, R1, R6

head:
	MOVD R2, R7
	MOVD R3, R8
	MOVD R4, R10

loop:
	VLD1.P 16(R1), [V0.S4]
	VLD1.P 16(R6), [V1.S4]
	VLD1.P 16(R7), [V2.S4]
	VLD1.P 16(R8), [V3.S4]
	VFMUL(30, 3, 3)
	VFMUL(2, 0, 4)
	VFMUL(3, 1, 5)
	VFMUL(2, 1, 6)
	VFMUL(3, 0, 7)
	VFSUB(5, 4, 4)
	VFADD(7, 6, 6)
	VST1.P [V4.S4], 16(R0)
	VST1.P [V6.S4], 16(R5)
	SUBS   $16, R10
	BNE    loop
	ADD    R4, R0
	ADD    R4, R1
	ADD    R4, R5
	ADD    R4, R6
	SUBS   $1, R9
	BNE    head
	RET
