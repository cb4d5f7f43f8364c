//go:build !noasm

#include "textflag.h"

// func floorAVX2(codes *uint8, x *float32, n int)
TEXT ·floorAVX2(SB), NOSPLIT, $0-24
	MOVQ     codes+0(FP), DI
	MOVQ     x+8(FP), SI
	MOVQ     n+16(FP), CX
	VPXOR    Y7, Y7, Y7
	VMOVDQU  packed<>+0(SB), Y5

// Positive values compare greater than 0 as integers, and so do positive NaN, whose code is
// not 0. The masks of four vectors are packed within 128-bit lanes; VPERMD puts them in order.
loop:
	VMOVDQU   (SI), Y0
	VMOVDQU   32(SI), Y1
	VMOVDQU   64(SI), Y2
	VMOVDQU   96(SI), Y3
	VPCMPGTD  Y7, Y0, Y0
	VPCMPGTD  Y7, Y1, Y1
	VPCMPGTD  Y7, Y2, Y2
	VPCMPGTD  Y7, Y3, Y3
	VPACKSSDW Y1, Y0, Y0
	VPACKSSDW Y3, Y2, Y2
	VPACKSSWB Y2, Y0, Y0
	VPERMD    Y0, Y5, Y0
	VMOVDQU   (DI), Y1
	VPCMPEQB  Y7, Y1, Y2
	VPAND     Y2, Y0, Y0
	VPSUBB    Y0, Y1, Y1
	VMOVDQU   Y1, (DI)
	ADDQ      $128, SI
	ADDQ      $32, DI
	SUBQ      $32, CX
	JNZ       loop
	VZEROUPPER
	RET

DATA packed<>+0(SB)/8, $0x0000000400000000
DATA packed<>+8(SB)/8, $0x0000000500000001
DATA packed<>+16(SB)/8, $0x0000000600000002
DATA packed<>+24(SB)/8, $0x0000000700000003
GLOBL packed<>(SB), RODATA|NOPTR, $32
