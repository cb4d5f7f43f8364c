//go:build !noasm

#include "textflag.h"
#include "go_asm.h"
#include "zmm_amd64.h"

DATA magnitude<>(SB)/4, $0x7fffffff
GLOBL magnitude<>(SB), RODATA|NOPTR, $4

// UPDATE_VECTOR computes updateGo for one vector. VSQRTPS and VDIVPS round correctly.
// Go's assembler writes the second operand of a subtraction or division first:
// VSUBPS b, a, d is d = a − b.
//
//	V0 … V8    the rule, in the order of its fields
//	V9         all bits but the sign
//	V10 … V12  the largest magnitudes of p, m and v, as bits
#define UPDATE_VECTOR \
	VMULPS (R11)(AX*1), V0, V13 \
	VMULPS (R9)(AX*1), V1, V14 \
	VMULPS V13, V2, V15 \
	VADDPS V15, V14, V14 \
	KEEP(V14) \
	VMULPS V13, V13, V13 \
	VMULPS V13, V4, V13 \
	VMULPS (R10)(AX*1), V3, V15 \
	VADDPS V13, V15, V13 \
	KEEP(V13) \
	VMOVUPS V14, (R9)(AX*1) \
	VMOVUPS V13, (R10)(AX*1) \
	LARGEST(V14, V11) \
	LARGEST(V13, V12) \
	VSQRTPS V13, V13 \
	VMULPS V13, V7, V13 \
	VADDPS V8, V13, V13 \
	VDIVPS V13, V14, V14 \
	VMULPS V14, V6, V14 \
	VMULPS (R8)(AX*1), V5, V13 \
	VSUBPS V14, V13, V13 \
	VMOVUPS V13, (R8)(AX*1) \
	LARGEST(V13, V10)

#define UPDATE \
	MOVQ rule+0(FP), DI \
	MOVQ p+8(FP), R8 \
	MOVQ m+16(FP), R9 \
	MOVQ v+24(FP), R10 \
	MOVQ grad+32(FP), R11 \
	MOVQ n+40(FP), CX \
	MOVQ lanes+48(FP), DX \
	VBROADCASTSS AdamW_Coef(DI), V0 \
	VBROADCASTSS AdamW_Beta1(DI), V1 \
	VBROADCASTSS AdamW_Rest1(DI), V2 \
	VBROADCASTSS AdamW_Beta2(DI), V3 \
	VBROADCASTSS AdamW_Rest2(DI), V4 \
	VBROADCASTSS AdamW_Decay(DI), V5 \
	VBROADCASTSS AdamW_Rate(DI), V6 \
	VBROADCASTSS AdamW_RootScale(DI), V7 \
	VBROADCASTSS AdamW_Epsilon(DI), V8 \
	VBROADCASTSS magnitude<>(SB), V9 \
	KEEP_SETUP \
	VXORPS X10, X10, X10 \
	VXORPS X11, X11, X11 \
	VXORPS X12, X12, X12 \
	LOOP(UPDATE_VECTOR) \
	VMOVUPS V10, 0(DX) \
	VMOVUPS V11, 64(DX) \
	VMOVUPS V12, 128(DX) \
	VZEROUPPER \
	RET

// LARGEST folds |x| into top, a maximum of bits.
#define LARGEST(x, top) \
	VANDPS V9, x, V15 \
	VPMAXUD V15, top, top

// KEEP computes kept(x). It may overwrite V15.
#define KEEP(x) \
	VPTESTMD Z16, x, K1 \
	VMOVAPS.Z x, K1, x
#define KEEP_SETUP VPBROADCASTD AdamW_Keep(DI), Z16

// func adamWVectors(rule *AdamW, p, m, v, grad *float32, n int, lanes *[3][16]uint32)
TEXT ·adamWVectors(SB), NOSPLIT, $0-56
	WIDEST(·adamWAVX512<>(SB), ·adamWAVX2<>(SB))

TEXT ·adamWAVX512<>(SB), NOSPLIT, $0-56
	UPDATE

#include "ymm_amd64.h"
#undef KEEP
#undef KEEP_SETUP

// No register is left for Keep and for zeros.
#define KEEP(x) \
	VPBROADCASTD AdamW_Keep(DI), V15 \
	VPAND x, V15, V15 \
	VPCMPEQD zeros<>(SB), V15, V15 \
	VPANDN x, V15, x
#define KEEP_SETUP

DATA zeros<>+0(SB)/8, $0
DATA zeros<>+8(SB)/8, $0
DATA zeros<>+16(SB)/8, $0
DATA zeros<>+24(SB)/8, $0
GLOBL zeros<>(SB), RODATA|NOPTR, $32

TEXT ·adamWAVX2<>(SB), NOSPLIT, $0-56
	UPDATE
