//go:build !noasm

#include "textflag.h"
#include "zmm_amd64.h"

DATA magnitude<>(SB)/4, $0x7fffffff
GLOBL magnitude<>(SB), RODATA|NOPTR, $4

// func multiplyAVX512(dst, x, y *float32, n int)
TEXT ·multiplyAVX512(SB), NOSPLIT, $0-32
	MOVQ dst+0(FP), DI
	MOVQ x+8(FP), SI
	MOVQ y+16(FP), R8
	MOVQ n+24(FP), CX
	SHLQ $2, CX
	XORQ AX, AX

loop:
	VMOVUPS (SI)(AX*1), V0
	VMULPS  (R8)(AX*1), V0, V0
	VMOVUPS V0, (DI)(AX*1)
	ADDQ    $WIDTH, AX
	CMPQ    AX, CX
	JB      loop
	VZEROUPPER
	RET

// func scaleByAVX512(x *float32, n int, factor float32)
TEXT ·scaleByAVX512(SB), NOSPLIT, $0-20
	MOVQ x+0(FP), SI
	MOVQ n+8(FP), CX
	VBROADCASTSS factor+16(FP), V1
	SHLQ $2, CX
	XORQ AX, AX

loop:
	VMULPS  (SI)(AX*1), V1, V0
	VMOVUPS V0, (SI)(AX*1)
	ADDQ    $WIDTH, AX
	CMPQ    AX, CX
	JB      loop
	VZEROUPPER
	RET

// func maxMagnitudesAVX512(dst, x *float32, n int)
TEXT ·maxMagnitudesAVX512(SB), NOSPLIT, $0-24
	MOVQ dst+0(FP), DI
	MOVQ x+8(FP), SI
	MOVQ n+16(FP), CX
	VPBROADCASTD magnitude<>(SB), V1
	SHLQ $2, CX
	XORQ AX, AX

loop:
	VPANDD   (SI)(AX*1), V1, V0
	VPANDD   (DI)(AX*1), V1, V2
	VPMAXUD V2, V0, V0
	VMOVUPS V0, (DI)(AX*1)
	ADDQ    $WIDTH, AX
	CMPQ    AX, CX
	JB      loop
	VZEROUPPER
	RET

#include "ymm_amd64.h"

// func multiplyAVX2(dst, x, y *float32, n int)
TEXT ·multiplyAVX2(SB), NOSPLIT, $0-32
	MOVQ dst+0(FP), DI
	MOVQ x+8(FP), SI
	MOVQ y+16(FP), R8
	MOVQ n+24(FP), CX
	SHLQ $2, CX
	XORQ AX, AX

loop:
	VMOVUPS (SI)(AX*1), V0
	VMULPS  (R8)(AX*1), V0, V0
	VMOVUPS V0, (DI)(AX*1)
	ADDQ    $WIDTH, AX
	CMPQ    AX, CX
	JB      loop
	VZEROUPPER
	RET

// func scaleByAVX2(x *float32, n int, factor float32)
TEXT ·scaleByAVX2(SB), NOSPLIT, $0-20
	MOVQ x+0(FP), SI
	MOVQ n+8(FP), CX
	VBROADCASTSS factor+16(FP), V1
	SHLQ $2, CX
	XORQ AX, AX

loop:
	VMULPS  (SI)(AX*1), V1, V0
	VMOVUPS V0, (SI)(AX*1)
	ADDQ    $WIDTH, AX
	CMPQ    AX, CX
	JB      loop
	VZEROUPPER
	RET

// func maxMagnitudesAVX2(dst, x *float32, n int)
TEXT ·maxMagnitudesAVX2(SB), NOSPLIT, $0-24
	MOVQ dst+0(FP), DI
	MOVQ x+8(FP), SI
	MOVQ n+16(FP), CX
	VPBROADCASTD magnitude<>(SB), V1
	SHLQ $2, CX
	XORQ AX, AX

loop:
	VPAND   (SI)(AX*1), V1, V0
	VPAND   (DI)(AX*1), V1, V2
	VPMAXUD V2, V0, V0
	VMOVUPS V0, (DI)(AX*1)
	ADDQ    $WIDTH, AX
	CMPQ    AX, CX
	JB      loop
	VZEROUPPER
	RET
