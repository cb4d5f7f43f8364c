//go:build !noasm

#include "textflag.h"
#include "zmm_amd64.h"

#define ROTATE_VECTOR \
	VMOVUPS (SI)(AX*1), V0 \
	VMOVUPS (R8)(AX*1), V1 \
	VMOVUPS (DX)(AX*1), V2 \
	VMULPS (BX)(AX*1), V10, V3 \
	VMULPS V2, V0, V4 \
	VMULPS V3, V1, V5 \
	VMULPS V2, V1, V6 \
	VMULPS V3, V0, V7 \
	VSUBPS V5, V4, V4 \
	VADDPS V7, V6, V6 \
	VMOVUPS V4, (DI)(AX*1) \
	VMOVUPS V6, (R9)(AX*1)

// SI and DI point to the first half of a head in x and dst, R8 and R9 to the second. AX
// counts the bytes of a half up to CX.
#define ROTATE \
	MOVQ dst+0(FP), DI \
	MOVQ x+8(FP), SI \
	MOVQ cos+16(FP), DX \
	MOVQ sin+24(FP), BX \
	MOVQ heads+32(FP), R10 \
	MOVQ half+40(FP), CX \
	VBROADCASTSS sign+48(FP), V10 \
	SHLQ $2, CX \
	LEAQ (SI)(CX*1), R8 \
	LEAQ (DI)(CX*1), R9 \
head: \
	XORQ AX, AX \
loop: \
	ROTATE_VECTOR \
	ADDQ $WIDTH, AX \
	CMPQ AX, CX \
	JB loop \
	LEAQ (SI)(CX*2), SI \
	LEAQ (DI)(CX*2), DI \
	LEAQ (R8)(CX*2), R8 \
	LEAQ (R9)(CX*2), R9 \
	DECQ R10 \
	JNZ head \
	VZEROUPPER \
	RET

// func rotateVectors(dst, x, cos, sin *float32, heads, half int, sign float32)
TEXT ·rotateVectors(SB), NOSPLIT, $0-52
	WIDEST(·rotateAVX512<>(SB), ·rotateAVX2<>(SB))

TEXT ·rotateAVX512<>(SB), NOSPLIT, $0-52
	ROTATE

#include "ymm_amd64.h"

TEXT ·rotateAVX2<>(SB), NOSPLIT, $0-52
	ROTATE
