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
DATA expConst<>+52(SB)/4, $0xff800000 // -Inf
GLOBL expConst<>(SB), RODATA|NOPTR, $56

// EXP16 is expf of the lanes of Z0, with every product rounded by itself.
// VSCALEFPS multiplies by a power of two of any size, rounding once. VMAXPS
// and VMINPS return their first operand here where it is NaN.
#define EXP16 \
	VMAXPS Z0, Z18, Z0; \
	VMINPS Z0, Z19, Z0; \
	VMULPS Z20, Z0, Z1; \
	VADDPS Z21, Z1, Z1; \
	VSUBPS Z21, Z1, Z1; \
	VMULPS Z22, Z1, Z2; \
	VSUBPS Z2, Z0, Z0; \
	VMULPS Z23, Z1, Z2; \
	VSUBPS Z2, Z0, Z0; \
	VMULPS Z24, Z0, Z2; \
	VADDPS Z25, Z2, Z2; \
	VMULPS Z2, Z0, Z2; \
	VADDPS Z26, Z2, Z2; \
	VMULPS Z2, Z0, Z2; \
	VADDPS Z27, Z2, Z2; \
	VMULPS Z2, Z0, Z2; \
	VADDPS Z28, Z2, Z2; \
	VMULPS Z2, Z0, Z2; \
	VADDPS Z29, Z2, Z2; \
	VMULPS Z2, Z0, Z2; \
	VMULPS Z2, Z0, Z2; \
	VADDPS Z0, Z2, Z2; \
	VADDPS Z30, Z2, Z2; \
	VSCALEFPS Z1, Z2, Z2

// func expSumAVX512(dst, src *float32, n int, scale, shift float32) float32
TEXT ·expSumAVX512(SB), NOSPLIT, $0-36
	MOVQ dst+0(FP), DI
	MOVQ src+8(FP), SI
	MOVQ n+16(FP), CX
	VBROADCASTSS scale+24(FP), Z16
	VBROADCASTSS shift+28(FP), Z17
	VBROADCASTSS expConst<>+0(SB), Z18
	VBROADCASTSS expConst<>+4(SB), Z19
	VBROADCASTSS expConst<>+8(SB), Z20
	VBROADCASTSS expConst<>+12(SB), Z21
	VBROADCASTSS expConst<>+16(SB), Z22
	VBROADCASTSS expConst<>+20(SB), Z23
	VBROADCASTSS expConst<>+24(SB), Z24
	VBROADCASTSS expConst<>+28(SB), Z25
	VBROADCASTSS expConst<>+32(SB), Z26
	VBROADCASTSS expConst<>+36(SB), Z27
	VBROADCASTSS expConst<>+40(SB), Z28
	VBROADCASTSS expConst<>+44(SB), Z29
	VBROADCASTSS expConst<>+48(SB), Z30
	VPXORQ Z31, Z31, Z31

whole:
	CMPQ CX, $16
	JLT rest
	VMOVUPS (SI), Z0
	VMULPS Z16, Z0, Z0
	VSUBPS Z17, Z0, Z0
	EXP16
	VMOVUPS Z2, (DI)
	VADDPS Z2, Z31, Z31
	ADDQ $64, SI
	ADDQ $64, DI
	SUBQ $16, CX
	JMP whole

rest:
	TESTQ CX, CX
	JZ sum
	MOVL $1, AX
	SHLL CX, AX
	DECL AX
	KMOVW AX, K1
	VMOVUPS.Z (SI), K1, Z0
	VMULPS Z16, Z0, Z0
	VSUBPS Z17, Z0, Z0
	EXP16
	VMOVUPS Z2, K1, (DI)
	VADDPS Z2, Z31, K1, Z31

sum:
	VEXTRACTF32X8 $1, Z31, Y1
	VMOVAPS Z31, Z0
	VADDPS Y1, Y0, Y0
	VEXTRACTF128 $1, Y0, X1
	VADDPS X1, X0, X0
	VPERMILPS $0x0e, X0, X1
	VADDPS X1, X0, X0
	VMOVSHDUP X0, X1
	VADDSS X1, X0, X0
	VZEROUPPER
	MOVSS X0, ret+32(FP)
	RET

// func maximumAVX512(x *float32, n int) float32
TEXT ·maximumAVX512(SB), NOSPLIT, $0-20
	MOVQ x+0(FP), SI
	MOVQ n+8(FP), CX
	VBROADCASTSS expConst<>+52(SB), Z0

whole:
	CMPQ CX, $16
	JLT rest
	VMOVUPS (SI), Z1
	VMAXPS Z0, Z1, Z0 // a NaN in Z1 leaves Z0
	ADDQ $64, SI
	SUBQ $16, CX
	JMP whole

rest:
	TESTQ CX, CX
	JZ fold
	MOVL $1, AX
	SHLL CX, AX
	DECL AX
	KMOVW AX, K1
	VMOVUPS.Z (SI), K1, Z1
	VMAXPS Z0, Z1, K1, Z0

fold:
	VEXTRACTF32X8 $1, Z0, Y1
	VMAXPS Y1, Y0, Y0
	VEXTRACTF128 $1, Y0, X1
	VMAXPS X1, X0, X0
	VPERMILPS $0x0e, X0, X1
	VMAXPS X1, X0, X0
	VMOVSHDUP X0, X1
	VMAXSS X1, X0, X0
	VZEROUPPER
	MOVSS X0, ret+16(FP)
	RET
