//go:build !noasm

#include "textflag.h"

// DI, SI and CX are dst, src and the number of codes left, a multiple of 32.

#define BEGIN \
	MOVQ dst+0(FP), DI \
	MOVQ src+8(FP), SI \
	MOVQ n+16(FP), CX

// func pack4Kernel(dst, src *uint8, n int)
TEXT ·pack4Kernel(SB), NOSPLIT, $0-24
	BEGIN
	MOVL         $0x10011001, AX
	VMOVD        AX, X9
	VPBROADCASTD X9, Y1

loop:
	VMOVDQU    (SI), Y0
	VPMADDUBSW Y1, Y0, Y0 // words: first code + 16 · second
	VPACKUSWB  Y0, Y0, Y0
	VPERMQ     $0x08, Y0, Y0
	VMOVDQU    X0, (DI)
	ADDQ       $32, SI
	ADDQ       $16, DI
	SUBQ       $32, CX
	JNZ        loop
	VZEROUPPER
	RET

// func unpack4Kernel(dst, src *uint8, n int)
TEXT ·unpack4Kernel(SB), NOSPLIT, $0-24
	BEGIN
	MOVL         $0x0f0f0f0f, AX
	VMOVD        AX, X9
	VPBROADCASTD X9, Y2

loop:
	VPMOVZXBW (SI), Y0
	VPSLLW    $4, Y0, Y1
	VPOR      Y1, Y0, Y0
	VPAND     Y2, Y0, Y0
	VMOVDQU   Y0, (DI)
	ADDQ      $16, SI
	ADDQ      $32, DI
	SUBQ      $32, CX
	JNZ       loop
	VZEROUPPER
	RET
