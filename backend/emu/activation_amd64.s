//go:build !noasm

#include "textflag.h"
#include "zmm_amd64.h"

// AX counts bytes up to CX; V12 is 0.
#define SETUP \
	SHLQ $2, CX; \
	XORQ AX, AX; \
	VXORPS V12, V12, V12

// NORMAL is Φ of the lanes of V0, eight or four float64 numbers, in V1, but for
// its reflection where x > 0, and e^(−x²/2) in V2. It overwrites V3 to V6.
// R9 points to the normalVectors, 64 bytes for each constant; 1 is in V15.
//
// VMAXPD returns its first operand here where it is NaN.
#define NORMAL \
	VMULPD 0(R9), V0, V3; \
	VMULPD V0, V3, V3; \
	VMAXPD V3, V14, V3; \
	VMULPD 128(R9), V3, V4; \
	VADDPD 192(R9), V4, V4; \
	VSUBPD 192(R9), V4, V5; \
	VMULPD 256(R9), V5, V6; \
	VSUBPD V6, V3, V3; \
	VMULPD 320(R9), V5, V6; \
	VSUBPD V6, V3, V3; \
	VMULPD 384(R9), V3, V2; \
	VADDPD 448(R9), V2, V2; \
	VMULPD V3, V2, V2; \
	VADDPD 512(R9), V2, V2; \
	VMULPD V3, V2, V2; \
	VADDPD 576(R9), V2, V2; \
	VMULPD V3, V2, V2; \
	VADDPD 640(R9), V2, V2; \
	VMULPD V3, V2, V2; \
	VADDPD 704(R9), V2, V2; \
	VMULPD V3, V2, V2; \
	VADDPD 768(R9), V2, V2; \
	VMULPD V3, V2, V2; \
	VADDPD 832(R9), V2, V2; \
	VMULPD V3, V2, V2; \
	VADDPD 896(R9), V2, V2; \
	VMULPD V3, V2, V2; \
	VADDPD 960(R9), V2, V2; \
	VMULPD V3, V2, V2; \
	VADDPD 1024(R9), V2, V2; \
	VMULPD V3, V2, V2; \
	VADDPD 1088(R9), V2, V2; \
	VPSLLQ $52, V4, V4; \
	VPADDQ V4, V2, V2; \
	VANDPD V13, V0, V4; \
	VMULPD 1152(R9), V4, V4; \
	VADDPD V15, V4, V4; \
	VDIVPD V4, V15, V4; \
	VMULPD 1280(R9), V4, V1; \
	VADDPD 1344(R9), V1, V1; \
	VMULPD V4, V1, V1; \
	VADDPD 1408(R9), V1, V1; \
	VMULPD V4, V1, V1; \
	VADDPD 1472(R9), V1, V1; \
	VMULPD V4, V1, V1; \
	VADDPD 1536(R9), V1, V1; \
	VMULPD V4, V1, V1; \
	VADDPD 1600(R9), V1, V1; \
	VMULPD V4, V1, V1; \
	VADDPD 1664(R9), V1, V1; \
	VMULPD V4, V1, V1; \
	VADDPD 1728(R9), V1, V1; \
	VMULPD V4, V1, V1; \
	VADDPD 1792(R9), V1, V1; \
	VMULPD V4, V1, V1; \
	VADDPD 1856(R9), V1, V1; \
	VMULPD V4, V1, V1; \
	VADDPD 1920(R9), V1, V1; \
	VMULPD 1984(R9), V2, V5; \
	VMULPD V4, V5, V5; \
	VMULPD V5, V1, V1

// NORMAL_SETUP has the lower bound in V14, 1 in V15, and the mask of |x| in V13.
#define NORMAL_SETUP \
	VMOVUPD 1216(R9), V15; \
	VMOVUPD 64(R9), V14; \
	MOVQ $0x7fffffffffffffff, BX; \
	VMOVQ BX, X13; \
	VBROADCASTSD X13, V13

// DENSITY adds x·φ(x) to V1, φ being e^(−x²/2) times its peak.
#define DENSITY \
	VMULPD 2048(R9), V2, V2; \
	VMULPD V0, V2, V2; \
	VADDPD V2, V1, V1

// func reluAVX512(dst, x *float32, n int)
TEXT ·reluAVX512(SB), NOSPLIT, $0-24
	MOVQ dst+0(FP), DI
	MOVQ x+8(FP), SI
	MOVQ n+16(FP), CX
	SETUP

loop:
	VMOVUPS (SI)(AX*1), V0
	VMAXPS V0, V12, V0 // NaN and −0 stay
	VMOVUPS V0, (DI)(AX*1)
	ADDQ $WIDTH, AX
	CMPQ AX, CX
	JB loop
	VZEROUPPER
	RET

// func reluGradientAVX512(dx, x, dy *float32, n int)
TEXT ·reluGradientAVX512(SB), NOSPLIT, $0-32
	MOVQ dx+0(FP), DI
	MOVQ x+8(FP), SI
	MOVQ dy+16(FP), DX
	MOVQ n+24(FP), CX
	SETUP

loop:
	VMOVUPS (SI)(AX*1), Z0
	VCMPPS $6, Z12, Z0, K1 // not x ≤ 0
	VMOVUPS.Z (DX)(AX*1), K1, Z0
	VMOVUPS V0, (DI)(AX*1)
	ADDQ $WIDTH, AX
	CMPQ AX, CX
	JB loop
	VZEROUPPER
	RET

// func geluAVX512(dst, x *float32, n int, constants *[33][8]float64)
TEXT ·geluAVX512(SB), NOSPLIT, $0-32
	MOVQ dst+0(FP), DI
	MOVQ x+8(FP), SI
	MOVQ n+16(FP), CX
	MOVQ constants+24(FP), R9
	SETUP
	NORMAL_SETUP

loop:
	VCVTPS2PD (SI)(AX*1), V0
	NORMAL
	VCMPPD $0x1e, Z12, Z0, K1 // x > 0
	VSUBPD Z1, Z15, K1, Z1
	VCVTPD2PS Z1, Y1
	VMULPS (SI)(AX*1), Y1, Y1
	VMOVUPS Y1, (DI)(AX*1)
	ADDQ $(WIDTH/2), AX
	CMPQ AX, CX
	JB loop
	VZEROUPPER
	RET

// func geluGradientAVX512(dx, x, dy *float32, n int, constants *[33][8]float64)
TEXT ·geluGradientAVX512(SB), NOSPLIT, $0-40
	MOVQ dx+0(FP), DI
	MOVQ x+8(FP), SI
	MOVQ dy+16(FP), DX
	MOVQ n+24(FP), CX
	MOVQ constants+32(FP), R9
	SETUP
	NORMAL_SETUP

loop:
	VCVTPS2PD (SI)(AX*1), V0
	NORMAL
	VCMPPD $0x1e, Z12, Z0, K1 // x > 0
	VSUBPD Z1, Z15, K1, Z1
	DENSITY
	VCVTPD2PS Z1, Y1
	VMULPS (DX)(AX*1), Y1, Y1
	VMOVUPS Y1, (DI)(AX*1)
	ADDQ $(WIDTH/2), AX
	CMPQ AX, CX
	JB loop
	VZEROUPPER
	RET

#include "ymm_amd64.h"

// func reluAVX2(dst, x *float32, n int)
TEXT ·reluAVX2(SB), NOSPLIT, $0-24
	MOVQ dst+0(FP), DI
	MOVQ x+8(FP), SI
	MOVQ n+16(FP), CX
	SETUP

loop:
	VMOVUPS (SI)(AX*1), V0
	VMAXPS V0, V12, V0 // NaN and −0 stay
	VMOVUPS V0, (DI)(AX*1)
	ADDQ $WIDTH, AX
	CMPQ AX, CX
	JB loop
	VZEROUPPER
	RET

// func reluGradientAVX2(dx, x, dy *float32, n int)
TEXT ·reluGradientAVX2(SB), NOSPLIT, $0-32
	MOVQ dx+0(FP), DI
	MOVQ x+8(FP), SI
	MOVQ dy+16(FP), DX
	MOVQ n+24(FP), CX
	SETUP

loop:
	VMOVUPS (SI)(AX*1), Y0
	VCMPPS $6, Y12, Y0, Y0 // not x ≤ 0
	VANDPS (DX)(AX*1), Y0, Y0
	VMOVUPS V0, (DI)(AX*1)
	ADDQ $WIDTH, AX
	CMPQ AX, CX
	JB loop
	VZEROUPPER
	RET

// func geluAVX2(dst, x *float32, n int, constants *[33][8]float64)
TEXT ·geluAVX2(SB), NOSPLIT, $0-32
	MOVQ dst+0(FP), DI
	MOVQ x+8(FP), SI
	MOVQ n+16(FP), CX
	MOVQ constants+24(FP), R9
	SETUP
	NORMAL_SETUP

loop:
	VCVTPS2PD (SI)(AX*1), V0
	NORMAL
	VCMPPD $0x1e, Y12, Y0, Y3 // x > 0
	VSUBPD Y1, Y15, Y4
	VBLENDVPD Y3, Y4, Y1, Y1
	VCVTPD2PSY Y1, X1
	VMULPS (SI)(AX*1), X1, X1
	VMOVUPS X1, (DI)(AX*1)
	ADDQ $(WIDTH/2), AX
	CMPQ AX, CX
	JB loop
	VZEROUPPER
	RET

// func geluGradientAVX2(dx, x, dy *float32, n int, constants *[33][8]float64)
TEXT ·geluGradientAVX2(SB), NOSPLIT, $0-40
	MOVQ dx+0(FP), DI
	MOVQ x+8(FP), SI
	MOVQ dy+16(FP), DX
	MOVQ n+24(FP), CX
	MOVQ constants+32(FP), R9
	SETUP
	NORMAL_SETUP

loop:
	VCVTPS2PD (SI)(AX*1), V0
	NORMAL
	VCMPPD $0x1e, Y12, Y0, Y3 // x > 0
	VSUBPD Y1, Y15, Y4
	VBLENDVPD Y3, Y4, Y1, Y1
	DENSITY
	VCVTPD2PSY Y1, X1
	VMULPS (DX)(AX*1), X1, X1
	VMOVUPS X1, (DI)(AX*1)
	ADDQ $(WIDTH/2), AX
	CMPQ AX, CX
	JB loop
	VZEROUPPER
	RET
