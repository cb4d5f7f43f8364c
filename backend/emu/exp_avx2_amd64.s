//go:build !noasm

#include "textflag.h"
#include "zmm_amd64.h"
#include "ymm_amd64.h"
#include "exp_amd64.h"

// func expLanesAVX2(lanes *[16]float32, dst, src *float32, n int, scale, shift float32)
TEXT ·expLanesAVX2(SB), NOSPLIT, $0-40
	MOVQ lanes+0(FP), BX
	MOVQ dst+8(FP), DI
	MOVQ src+16(FP), SI
	MOVQ n+24(FP), CX
	VBROADCASTSS scale+32(FP), Y4
	VBROADCASTSS shift+36(FP), Y5
	EXP_SETUP
	VXORPS Y6, Y6, Y6
	VXORPS Y7, Y7, Y7

loop:
	VMULPS (SI), Y4, Y0
	VSUBPS Y5, Y0, Y0
	EXP
	VADDPS Y2, Y6, Y6
	VMULPS 32(SI), Y4, Y0
	VMOVUPS Y2, (DI)
	VSUBPS Y5, Y0, Y0
	EXP
	VADDPS Y2, Y7, Y7
	VMOVUPS Y2, 32(DI)
	ADDQ $64, SI
	ADDQ $64, DI
	SUBQ $16, CX
	JNZ loop

	VMOVUPS Y6, (BX)
	VMOVUPS Y7, 32(BX)
	VZEROUPPER
	RET

// func maximumAVX2(x *float32, n int) float32
TEXT ·maximumAVX2(SB), NOSPLIT, $0-20
	MOVQ x+0(FP), SI
	MOVQ n+8(FP), CX
	MOVL $0xff800000, AX // -Inf
	VMOVD AX, X0
	VBROADCASTSS X0, Y0

loop:
	VMOVUPS (SI), Y1
	VMAXPS Y0, Y1, Y0 // a NaN in Y1 leaves Y0
	ADDQ $32, SI
	SUBQ $8, CX
	JNZ loop

	VEXTRACTF128 $1, Y0, X1
	VMAXPS X1, X0, X0
	VPERMILPS $0x0e, X0, X1
	VMAXPS X1, X0, X0
	VMOVSHDUP X0, X1
	VMAXSS X1, X0, X0
	VZEROUPPER
	MOVSS X0, ret+16(FP)
	RET
