//go:build !noasm

#include "textflag.h"

// The constants of expf, in its order of use.
DATA expConst<>+0(SB)/4, $0xc2d00000  // -104
DATA expConst<>+4(SB)/4, $0x42b20000  // 89
DATA expConst<>+8(SB)/4, $0x3fb8aa3b  // log2 e
DATA expConst<>+12(SB)/4, $0x4b400000 // 3·2^22
DATA expConst<>+16(SB)/4, $0x3f318000 // ln 2, high part
DATA expConst<>+20(SB)/4, $0xb95e8083 // ln 2, low part
DATA expConst<>+24(SB)/4, $0x39506967
DATA expConst<>+28(SB)/4, $0x3ab743ce
DATA expConst<>+32(SB)/4, $0x3c088908
DATA expConst<>+36(SB)/4, $0x3d2aa9c1
DATA expConst<>+40(SB)/4, $0x3e2aaaaa
DATA expConst<>+44(SB)/4, $0x3f000000
DATA expConst<>+48(SB)/4, $0x3f800000 // 1
DATA expConst<>+52(SB)/4, $0x0000007f // bias of the exponent
GLOBL expConst<>(SB), RODATA|NOPTR, $56

// STEP is p = p·r + c, the product rounded by itself.
#define STEP(at) \
	VMULPS Y2, Y0, Y2; \
	VBROADCASTSS expConst<>+at(SB), Y3; \
	VADDPS Y3, Y2, Y2

// EXP8 is expf of the lanes of Y0, in Y2. VMAXPS and VMINPS return their first
// operand here where it is NaN. Constants that do not fit the registers are
// broadcast where they are used.
#define EXP8 \
	VMAXPS Y0, Y8, Y0; \
	VMINPS Y0, Y9, Y0; \
	VMULPS Y10, Y0, Y1; \
	VADDPS Y11, Y1, Y1; \
	VSUBPS Y11, Y1, Y1; \
	VMULPS Y12, Y1, Y2; \
	VSUBPS Y2, Y0, Y0; \
	VMULPS Y13, Y1, Y2; \
	VSUBPS Y2, Y0, Y0; \
	VBROADCASTSS expConst<>+24(SB), Y2; \
	STEP(28); \
	STEP(32); \
	STEP(36); \
	STEP(40); \
	STEP(44); \
	VMULPS Y2, Y0, Y2; \
	VMULPS Y2, Y0, Y2; \
	VADDPS Y0, Y2, Y2; \
	VADDPS Y14, Y2, Y2; \
	VCVTPS2DQ Y1, Y1; \
	VPSRAD $1, Y1, Y3; \
	VPSUBD Y3, Y1, Y1; \
	VPADDD Y15, Y3, Y3; \
	VPADDD Y15, Y1, Y1; \
	VPSLLD $23, Y3, Y3; \
	VPSLLD $23, Y1, Y1; \
	VMULPS Y3, Y2, Y2; \
	VMULPS Y1, Y2, Y2

// func expLanesAVX2(lanes *[16]float32, dst, src *float32, n int, scale, shift float32)
TEXT ·expLanesAVX2(SB), NOSPLIT, $0-40
	MOVQ lanes+0(FP), BX
	MOVQ dst+8(FP), DI
	MOVQ src+16(FP), SI
	MOVQ n+24(FP), CX
	VBROADCASTSS scale+32(FP), Y6
	VBROADCASTSS shift+36(FP), Y7
	VBROADCASTSS expConst<>+0(SB), Y8
	VBROADCASTSS expConst<>+4(SB), Y9
	VBROADCASTSS expConst<>+8(SB), Y10
	VBROADCASTSS expConst<>+12(SB), Y11
	VBROADCASTSS expConst<>+16(SB), Y12
	VBROADCASTSS expConst<>+20(SB), Y13
	VBROADCASTSS expConst<>+48(SB), Y14
	VBROADCASTSS expConst<>+52(SB), Y15
	VXORPS Y4, Y4, Y4
	VXORPS Y5, Y5, Y5

loop:
	VMOVUPS (SI), Y0
	VMULPS Y6, Y0, Y0
	VSUBPS Y7, Y0, Y0
	EXP8
	VADDPS Y2, Y4, Y4
	VMOVUPS 32(SI), Y0
	VMOVUPS Y2, (DI)
	VMULPS Y6, Y0, Y0
	VSUBPS Y7, Y0, Y0
	EXP8
	VADDPS Y2, Y5, Y5
	VMOVUPS Y2, 32(DI)
	ADDQ $64, SI
	ADDQ $64, DI
	SUBQ $16, CX
	JNZ loop

	VMOVUPS Y4, (BX)
	VMOVUPS Y5, 32(BX)
	VZEROUPPER
	RET
