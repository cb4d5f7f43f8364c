//go:build !noasm

#include "textflag.h"

// R0, R1 and R2 are dst, src and the number of codes left, a multiple of 32.

#define BEGIN \
	MOVD dst+0(FP), R0 \
	MOVD src+8(FP), R1 \
	MOVD n+16(FP), R2

// func pack4Kernel(dst, src *uint8, n int)
TEXT ·pack4Kernel(SB), NOSPLIT, $0-24
	BEGIN

loop:
	VLD2.P 32(R1), [V0.B16, V1.B16]
	VSHL   $4, V1.B16, V1.B16
	VORR   V1.B16, V0.B16, V0.B16
	VST1.P [V0.B16], 16(R0)
	SUBS   $32, R2
	BNE    loop
	RET

// func unpack4Kernel(dst, src *uint8, n int)
TEXT ·unpack4Kernel(SB), NOSPLIT, $0-24
	BEGIN
	VMOVI $15, V2.B16

loop:
	VLD1.P 16(R1), [V0.B16]
	VUSHR  $4, V0.B16, V1.B16
	VAND   V2.B16, V0.B16, V0.B16
	VST2.P [V0.B16, V1.B16], 32(R0)
	SUBS   $32, R2
	BNE    loop
	RET
