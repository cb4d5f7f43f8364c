//go:build !noasm

#include "textflag.h"
#include "zmm_amd64.h"

DATA magnitude<>(SB)/4, $0x7fffffff
GLOBL magnitude<>(SB), RODATA|NOPTR, $4

#define ADD_VECTOR \
	VMOVUPS (DI)(AX*1), V0 \
	VADDPS (SI)(AX*1), V0, V0 \
	VMOVUPS V0, (DI)(AX*1)

#define ADD \
	MOVQ dst+0(FP), DI \
	MOVQ x+8(FP), SI \
	MOVQ n+16(FP), CX \
	LOOP(ADD_VECTOR) \
	VZEROUPPER \
	RET

#define BUTTERFLY_VECTOR \
	VMOVUPS (DI)(AX*1), V0 \
	VMOVUPS (SI)(AX*1), V1 \
	VADDPS V1, V0, V2 \
	VSUBPS V1, V0, V3 \
	VMOVUPS V2, (DI)(AX*1) \
	VMOVUPS V3, (SI)(AX*1)

#define BUTTERFLY \
	MOVQ x+0(FP), DI \
	MOVQ y+8(FP), SI \
	MOVQ n+16(FP), CX \
	LOOP(BUTTERFLY_VECTOR) \
	VZEROUPPER \
	RET

#define MULTIPLY_VECTOR \
	VMOVUPS (SI)(AX*1), V0 \
	VMULPS (DX)(AX*1), V0, V0 \
	VMOVUPS V0, (DI)(AX*1)

#define MULTIPLY \
	MOVQ dst+0(FP), DI \
	MOVQ x+8(FP), SI \
	MOVQ y+16(FP), DX \
	MOVQ n+24(FP), CX \
	LOOP(MULTIPLY_VECTOR) \
	VZEROUPPER \
	RET

#define SCALE_VECTOR \
	VMULPS (SI)(AX*1), V1, V0 \
	VMOVUPS V0, (SI)(AX*1)

#define SCALE \
	MOVQ x+0(FP), SI \
	MOVQ n+8(FP), CX \
	VBROADCASTSS scale+16(FP), V1 \
	LOOP(SCALE_VECTOR) \
	VZEROUPPER \
	RET

#define MAX_VECTOR \
	VANDPS (SI)(AX*1), V1, V0 \
	VANDPS (DI)(AX*1), V1, V2 \
	VPMAXUD V2, V0, V0 \
	VMOVUPS V0, (DI)(AX*1)

#define MAX_MAGNITUDES \
	MOVQ dst+0(FP), DI \
	MOVQ x+8(FP), SI \
	MOVQ n+16(FP), CX \
	VBROADCASTSS magnitude<>(SB), V1 \
	LOOP(MAX_VECTOR) \
	VZEROUPPER \
	RET

// func addVectors(dst, x *float32, n int)
TEXT ·addVectors(SB), NOSPLIT, $0-24
	WIDEST(·addAVX512<>(SB), ·addAVX2<>(SB))

// func butterflyVectors(x, y *float32, n int)
TEXT ·butterflyVectors(SB), NOSPLIT, $0-24
	WIDEST(·butterflyAVX512<>(SB), ·butterflyAVX2<>(SB))

// func multiplyVectors(dst, x, y *float32, n int)
TEXT ·multiplyVectors(SB), NOSPLIT, $0-32
	WIDEST(·multiplyAVX512<>(SB), ·multiplyAVX2<>(SB))

// func scaleVectors(x *float32, n int, scale float32)
TEXT ·scaleVectors(SB), NOSPLIT, $0-20
	WIDEST(·scaleAVX512<>(SB), ·scaleAVX2<>(SB))

// func maxMagnitudesVectors(dst, x *float32, n int)
TEXT ·maxMagnitudesVectors(SB), NOSPLIT, $0-24
	WIDEST(·maxMagnitudesAVX512<>(SB), ·maxMagnitudesAVX2<>(SB))

TEXT ·addAVX512<>(SB), NOSPLIT, $0-24
	ADD

TEXT ·butterflyAVX512<>(SB), NOSPLIT, $0-24
	BUTTERFLY

TEXT ·multiplyAVX512<>(SB), NOSPLIT, $0-32
	MULTIPLY

TEXT ·scaleAVX512<>(SB), NOSPLIT, $0-20
	SCALE

TEXT ·maxMagnitudesAVX512<>(SB), NOSPLIT, $0-24
	MAX_MAGNITUDES

#include "ymm_amd64.h"

TEXT ·addAVX2<>(SB), NOSPLIT, $0-24
	ADD

TEXT ·butterflyAVX2<>(SB), NOSPLIT, $0-24
	BUTTERFLY

TEXT ·multiplyAVX2<>(SB), NOSPLIT, $0-32
	MULTIPLY

TEXT ·scaleAVX2<>(SB), NOSPLIT, $0-20
	SCALE

TEXT ·maxMagnitudesAVX2<>(SB), NOSPLIT, $0-24
	MAX_MAGNITUDES
