//go:build !noasm

#include "textflag.h"

// TIMES multiplies the pairs at DI by z and moves on to the next row of the tile. Z4 is the
// mask of upper halves, by which VPTERNLOGD takes these from Z0.
#define TIMES(z) \
	VMOVDQU32  (DI), Z0 \
	VPSLLD     $16, Z0, Z1 \
	VPANDD     Z4, Z0, Z0 \
	VMULPS     z, Z0, Z0 \
	VMULPS     z, Z1, Z1 \
	VPSRLD     $16, Z1, Z1 \
	VPTERNLOGD $0xec, Z4, Z1, Z0 \
	VMOVDQU32  Z0, (DI) \
	ADDQ       $64, DI

#define SCALES_BEGIN \
	MOVQ         tile+0(FP), DI \
	MOVQ         scales+8(FP), SI \
	MOVL         $0xffff0000, AX \
	VPBROADCASTD AX, Z4

// func scaleRowsAMX(tile *[512]uint16, scales *tileScales)
//
// The left operand: a row has a scale for each half of its pairs.
TEXT ·scaleRowsAMX(SB), NOSPLIT, $0-16
	SCALES_BEGIN
	MOVL  $0xff00, AX
	KMOVW AX, K1
	MOVL  $16, CX

row:
	VBROADCASTSS (SI), Z5
	VBROADCASTSS 64(SI), K1, Z5
	TIMES(Z5)
	ADDQ         $4, SI
	DECL         CX
	JNZ          row
	VZEROUPPER
	RET

// func scaleColumnsAMX(tile *[512]uint16, scales *tileScales)
//
// The right operand: the first half of the rows has one vector of scales, the second another.
TEXT ·scaleColumnsAMX(SB), NOSPLIT, $0-16
	SCALES_BEGIN
	MOVL $2, CX

half:
	VMOVUPS (SI), Z5
	TIMES(Z5)
	TIMES(Z5)
	TIMES(Z5)
	TIMES(Z5)
	TIMES(Z5)
	TIMES(Z5)
	TIMES(Z5)
	TIMES(Z5)
	ADDQ    $64, SI
	DECL    CX
	JNZ     half
	VZEROUPPER
	RET
