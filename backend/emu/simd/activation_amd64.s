//go:build !noasm

#include "textflag.h"
#include "zmm_amd64.h"

// V12 is 0 in all kernels. Macros that differ between the two widths are defined at the
// kernels: PASS_POSITIVE, REFLECT, NARROW, and the instructions with a constant from
// memory. The AVX-512 kernels broadcast the constant: Go aligns data to 32 bytes, so a
// constant of 64 bytes could cross a cache line.

// RELU_VECTOR leaves NaN and −0 as they are.
#define RELU_VECTOR \
	VMOVUPS (SI)(AX*1), V0 \
	VMAXPS V0, V12, V0 \
	VMOVUPS V0, (DI)(AX*1)

#define RELU \
	MOVQ dst+0(FP), DI \
	MOVQ x+8(FP), SI \
	MOVQ n+16(FP), CX \
	VXORPS V12, V12, V12 \
	LOOP(RELU_VECTOR) \
	VZEROUPPER \
	RET

// PASS_POSITIVE sets V0, which holds x, to dy where x is not ≤ 0, and to 0 elsewhere.
#define RELU_GRADIENT_VECTOR \
	VMOVUPS (SI)(AX*1), V0 \
	PASS_POSITIVE \
	VMOVUPS V0, (DI)(AX*1)

#define RELU_GRADIENT \
	MOVQ dx+0(FP), DI \
	MOVQ x+8(FP), SI \
	MOVQ dy+16(FP), DX \
	MOVQ n+24(FP), CX \
	VXORPS V12, V12, V12 \
	LOOP(RELU_GRADIENT_VECTOR) \
	VZEROUPPER \
	RET

// NORMAL computes Φ(−|x|) for the lanes of V0, eight or four float64 values, in V1, and
// e^(−x²/2) in V2. It overwrites V3 to V6. R9 points to normalVectors, 32 bytes per
// constant; V15 is 1.
//
// VMAXPD returns its first operand here if that is NaN.
#define NORMAL \
	MUL_CONSTANT 0(R9), V0, V3 \
	VMULPD V0, V3, V3 \
	VMAXPD V3, V14, V3 \
	MUL_CONSTANT 64(R9), V3, V4 \
	ADD_CONSTANT 96(R9), V4, V4 \
	SUB_CONSTANT 96(R9), V4, V5 \
	MUL_CONSTANT 128(R9), V5, V6 \
	VSUBPD V6, V3, V3 \
	MUL_CONSTANT 160(R9), V5, V6 \
	VSUBPD V6, V3, V3 \
	MUL_CONSTANT 192(R9), V3, V2 \
	ADD_CONSTANT 224(R9), V2, V2 \
	VMULPD V3, V2, V2 \
	ADD_CONSTANT 256(R9), V2, V2 \
	VMULPD V3, V2, V2 \
	ADD_CONSTANT 288(R9), V2, V2 \
	VMULPD V3, V2, V2 \
	ADD_CONSTANT 320(R9), V2, V2 \
	VMULPD V3, V2, V2 \
	ADD_CONSTANT 352(R9), V2, V2 \
	VMULPD V3, V2, V2 \
	ADD_CONSTANT 384(R9), V2, V2 \
	VMULPD V3, V2, V2 \
	ADD_CONSTANT 416(R9), V2, V2 \
	VMULPD V3, V2, V2 \
	ADD_CONSTANT 448(R9), V2, V2 \
	VMULPD V3, V2, V2 \
	ADD_CONSTANT 480(R9), V2, V2 \
	VMULPD V3, V2, V2 \
	ADD_CONSTANT 512(R9), V2, V2 \
	VMULPD V3, V2, V2 \
	ADD_CONSTANT 544(R9), V2, V2 \
	VPSLLQ $52, V4, V4 \
	VPADDQ V4, V2, V2 \
	VANDPD V13, V0, V4 \
	MUL_CONSTANT 576(R9), V4, V4 \
	VADDPD V15, V4, V4 \
	VDIVPD V4, V15, V4 \
	MUL_CONSTANT 640(R9), V4, V1 \
	ADD_CONSTANT 672(R9), V1, V1 \
	VMULPD V4, V1, V1 \
	ADD_CONSTANT 704(R9), V1, V1 \
	VMULPD V4, V1, V1 \
	ADD_CONSTANT 736(R9), V1, V1 \
	VMULPD V4, V1, V1 \
	ADD_CONSTANT 768(R9), V1, V1 \
	VMULPD V4, V1, V1 \
	ADD_CONSTANT 800(R9), V1, V1 \
	VMULPD V4, V1, V1 \
	ADD_CONSTANT 832(R9), V1, V1 \
	VMULPD V4, V1, V1 \
	ADD_CONSTANT 864(R9), V1, V1 \
	VMULPD V4, V1, V1 \
	ADD_CONSTANT 896(R9), V1, V1 \
	VMULPD V4, V1, V1 \
	ADD_CONSTANT 928(R9), V1, V1 \
	VMULPD V4, V1, V1 \
	ADD_CONSTANT 960(R9), V1, V1 \
	MUL_CONSTANT 992(R9), V2, V5 \
	VMULPD V4, V5, V5 \
	VMULPD V5, V1, V1

// NORMAL_SETUP sets V14 to the lower bound, V15 to 1 and V13 to the mask for |x|.
#define NORMAL_SETUP \
	VXORPS V12, V12, V12 \
	LEAQ ·normalVectors(SB), R9 \
	VBROADCASTSD 608(R9), V15 \
	VBROADCASTSD 32(R9), V14 \
	MOVQ $0x7fffffffffffffff, BX \
	VMOVQ BX, X13 \
	VBROADCASTSD X13, V13

// DENSITY adds x·φ(x) to V1; φ is e^(−x²/2) times φ(0).
#define DENSITY \
	MUL_CONSTANT 1024(R9), V2, V2 \
	VMULPD V0, V2, V2 \
	VADDPD V2, V1, V1

// GELU_LOOP processes half a vector of float32 per iteration. REFLECT replaces V1 by
// 1 − V1 where x > 0; NARROW converts V1 to float32, in LOW1.
#define GELU_LOOP(density, by) \
	NORMAL_SETUP \
	SHLQ $2, CX \
	XORQ AX, AX \
loop: \
	VCVTPS2PD (SI)(AX*1), V0 \
	NORMAL \
	REFLECT \
	density \
	NARROW \
	VMULPS (by)(AX*1), LOW1, LOW1 \
	VMOVUPS LOW1, (DI)(AX*1) \
	ADDQ $(WIDTH/2), AX \
	CMPQ AX, CX \
	JB loop \
	VZEROUPPER \
	RET

#define NO_DENSITY

#define GELU \
	MOVQ dst+0(FP), DI \
	MOVQ x+8(FP), SI \
	MOVQ n+16(FP), CX \
	GELU_LOOP(NO_DENSITY, SI)

#define GELU_GRADIENT \
	MOVQ dx+0(FP), DI \
	MOVQ x+8(FP), SI \
	MOVQ dy+16(FP), DX \
	MOVQ n+24(FP), CX \
	GELU_LOOP(DENSITY, DX)

#define MUL_CONSTANT VMULPD.BCST
#define ADD_CONSTANT VADDPD.BCST
#define SUB_CONSTANT VSUBPD.BCST
#define PASS_POSITIVE \
	VCMPPS $6, Z12, Z0, K1 \
	VMOVUPS.Z (DX)(AX*1), K1, Z0
#define REFLECT \
	VCMPPD $0x1e, Z12, Z0, K1 \
	VSUBPD Z1, Z15, K1, Z1
#define NARROW VCVTPD2PS Z1, Y1
#define LOW1 Y1

// func reluVectors(dst, x *float32, n int)
TEXT ·reluVectors(SB), NOSPLIT, $0-24
	WIDEST(·reluAVX512<>(SB), ·reluAVX2<>(SB))

// func reluGradientVectors(dx, x, dy *float32, n int)
TEXT ·reluGradientVectors(SB), NOSPLIT, $0-32
	WIDEST(·reluGradientAVX512<>(SB), ·reluGradientAVX2<>(SB))

// func geluVectors(dst, x *float32, n int)
TEXT ·geluVectors(SB), NOSPLIT, $0-24
	WIDEST(·geluAVX512<>(SB), ·geluAVX2<>(SB))

// func geluGradientVectors(dx, x, dy *float32, n int)
TEXT ·geluGradientVectors(SB), NOSPLIT, $0-32
	WIDEST(·geluGradientAVX512<>(SB), ·geluGradientAVX2<>(SB))

TEXT ·reluAVX512<>(SB), NOSPLIT, $0-24
	RELU

TEXT ·reluGradientAVX512<>(SB), NOSPLIT, $0-32
	RELU_GRADIENT

TEXT ·geluAVX512<>(SB), NOSPLIT, $0-24
	GELU

TEXT ·geluGradientAVX512<>(SB), NOSPLIT, $0-32
	GELU_GRADIENT

#include "ymm_amd64.h"

#undef MUL_CONSTANT
#undef ADD_CONSTANT
#undef SUB_CONSTANT
#undef PASS_POSITIVE
#undef REFLECT
#undef NARROW
#undef LOW1
#define MUL_CONSTANT VMULPD
#define ADD_CONSTANT VADDPD
#define SUB_CONSTANT VSUBPD
#define PASS_POSITIVE \
	VCMPPS $6, Y12, Y0, Y0 \
	VANDPS (DX)(AX*1), Y0, Y0
#define REFLECT \
	VCMPPD $0x1e, Y12, Y0, Y3 \
	VSUBPD Y1, Y15, Y4 \
	VBLENDVPD Y3, Y4, Y1, Y1
#define NARROW VCVTPD2PSY Y1, X1
#define LOW1 X1

TEXT ·reluAVX2<>(SB), NOSPLIT, $0-24
	RELU

TEXT ·reluGradientAVX2<>(SB), NOSPLIT, $0-32
	RELU_GRADIENT

TEXT ·geluAVX2<>(SB), NOSPLIT, $0-24
	GELU

TEXT ·geluGradientAVX2<>(SB), NOSPLIT, $0-32
	GELU_GRADIENT
