//go:build !noasm

#include "textflag.h"
#include "zmm_amd64.h"

// AX counts bytes up to CX.

// DOT adds the products of one vector to some of the lanes.
#define DOT(at, lanes) \
	VMOVUPS at(SI)(AX*1), V0; \
	VMULPS at(DX)(AX*1), V0, V0; \
	VADDPS V0, lanes, lanes

// GAIN_SUMS has x̂ = x·inv in V0, dy in V1, and g = dy ⊙ gain.
#define GAIN_SUMS(at, lanes) \
	VMULPS at(SI)(AX*1), V10, V0; \
	VMOVUPS at(DX)(AX*1), V1; \
	VMULPS V0, V1, V2; \
	VADDPS at(DI)(AX*1), V2, V2; \
	VMOVUPS V2, at(DI)(AX*1); \
	VMULPS at(BX)(AX*1), V1, V1; \
	VMULPS V0, V1, V1; \
	VADDPS V1, lanes, lanes

// FOLD adds up the eight lanes of Y4.
#define FOLD \
	VEXTRACTF128 $1, Y4, X5; \
	VADDPS X5, X4, X4; \
	VPERMILPS $0x0e, X4, X5; \
	VADDPS X5, X4, X4; \
	VMOVSHDUP X4, X5; \
	VADDSS X5, X4, X4

#define SCALE_BY_GAIN \
	VMULPS (SI)(AX*1), V10, V0; \
	VMULPS (DX)(AX*1), V0, V0; \
	VMOVUPS V0, (DI)(AX*1); \
	ADDQ $WIDTH, AX

// GRADIENT is inv·(g − x̂·mean), with inv in V10 and the mean in V11.
#define GRADIENT \
	VMULPS (SI)(AX*1), V10, V0; \
	VMULPS V11, V0, V0; \
	VMOVUPS (DX)(AX*1), V1; \
	VMULPS (BX)(AX*1), V1, V1; \
	VSUBPS V0, V1, V1; \
	VMULPS V10, V1, V1; \
	VMOVUPS V1, (DI)(AX*1); \
	ADDQ $WIDTH, AX

// func dotAVX512(lanes *[32]float32, x, y *float32, n int) float32
TEXT ·dotAVX512(SB), NOSPLIT, $0-36
	MOVQ lanes+0(FP), R8
	MOVQ x+8(FP), SI
	MOVQ y+16(FP), DX
	MOVQ n+24(FP), CX
	SHLQ $2, CX
	XORQ AX, AX
	VXORPS Z4, Z4, Z4
	VXORPS Z5, Z5, Z5

loop:
	DOT(0, Z4)
	DOT(64, Z5)
	ADDQ $128, AX
	CMPQ AX, CX
	JB loop
	VMOVUPS Z4, (R8)
	VMOVUPS Z5, 64(R8)
	VADDPS Z5, Z4, Z4
	VEXTRACTF64X4 $1, Z4, Y5
	VADDPS Y5, Y4, Y4
	FOLD
	VZEROUPPER
	MOVSS X4, ret+32(FP)
	RET

// func gainSumsAVX512(lanes *[32]float32, dgain, x, dy, gain *float32, inv float32, n int) float32
TEXT ·gainSumsAVX512(SB), NOSPLIT, $0-60
	MOVQ lanes+0(FP), R8
	MOVQ dgain+8(FP), DI
	MOVQ x+16(FP), SI
	MOVQ dy+24(FP), DX
	MOVQ gain+32(FP), BX
	VBROADCASTSS inv+40(FP), V10
	MOVQ n+48(FP), CX
	SHLQ $2, CX
	XORQ AX, AX
	VXORPS Z4, Z4, Z4
	VXORPS Z5, Z5, Z5

loop:
	GAIN_SUMS(0, Z4)
	GAIN_SUMS(64, Z5)
	ADDQ $128, AX
	CMPQ AX, CX
	JB loop
	VMOVUPS Z4, (R8)
	VMOVUPS Z5, 64(R8)
	VADDPS Z5, Z4, Z4
	VEXTRACTF64X4 $1, Z4, Y5
	VADDPS Y5, Y4, Y4
	FOLD
	VZEROUPPER
	MOVSS X4, ret+56(FP)
	RET

// func scaleByGainAVX512(dst, x, gain *float32, inv float32, n int)
TEXT ·scaleByGainAVX512(SB), NOSPLIT, $0-40
	MOVQ dst+0(FP), DI
	MOVQ x+8(FP), SI
	MOVQ gain+16(FP), DX
	VBROADCASTSS inv+24(FP), V10
	MOVQ n+32(FP), CX
	SHLQ $2, CX
	XORQ AX, AX

loop:
	SCALE_BY_GAIN
	CMPQ AX, CX
	JB loop
	VZEROUPPER
	RET

// func normGradientAVX512(dx, x, dy, gain *float32, inv, mean float32, n int)
TEXT ·normGradientAVX512(SB), NOSPLIT, $0-48
	MOVQ dx+0(FP), DI
	MOVQ x+8(FP), SI
	MOVQ dy+16(FP), DX
	MOVQ gain+24(FP), BX
	VBROADCASTSS inv+32(FP), V10
	VBROADCASTSS mean+36(FP), V11
	MOVQ n+40(FP), CX
	SHLQ $2, CX
	XORQ AX, AX

loop:
	GRADIENT
	CMPQ AX, CX
	JB loop
	VZEROUPPER
	RET

#include "ymm_amd64.h"

// func dotAVX2(lanes *[32]float32, x, y *float32, n int) float32
TEXT ·dotAVX2(SB), NOSPLIT, $0-36
	MOVQ lanes+0(FP), R8
	MOVQ x+8(FP), SI
	MOVQ y+16(FP), DX
	MOVQ n+24(FP), CX
	SHLQ $2, CX
	XORQ AX, AX
	VXORPS Y4, Y4, Y4
	VXORPS Y5, Y5, Y5
	VXORPS Y6, Y6, Y6
	VXORPS Y7, Y7, Y7

loop:
	DOT(0, Y4)
	DOT(32, Y5)
	DOT(64, Y6)
	DOT(96, Y7)
	ADDQ $128, AX
	CMPQ AX, CX
	JB loop
	VMOVUPS Y4, (R8)
	VMOVUPS Y5, 32(R8)
	VMOVUPS Y6, 64(R8)
	VMOVUPS Y7, 96(R8)
	VADDPS Y6, Y4, Y4
	VADDPS Y7, Y5, Y5
	VADDPS Y5, Y4, Y4
	FOLD
	VZEROUPPER
	MOVSS X4, ret+32(FP)
	RET

// func gainSumsAVX2(lanes *[32]float32, dgain, x, dy, gain *float32, inv float32, n int) float32
TEXT ·gainSumsAVX2(SB), NOSPLIT, $0-60
	MOVQ lanes+0(FP), R8
	MOVQ dgain+8(FP), DI
	MOVQ x+16(FP), SI
	MOVQ dy+24(FP), DX
	MOVQ gain+32(FP), BX
	VBROADCASTSS inv+40(FP), V10
	MOVQ n+48(FP), CX
	SHLQ $2, CX
	XORQ AX, AX
	VXORPS Y4, Y4, Y4
	VXORPS Y5, Y5, Y5
	VXORPS Y6, Y6, Y6
	VXORPS Y7, Y7, Y7

loop:
	GAIN_SUMS(0, Y4)
	GAIN_SUMS(32, Y5)
	GAIN_SUMS(64, Y6)
	GAIN_SUMS(96, Y7)
	ADDQ $128, AX
	CMPQ AX, CX
	JB loop
	VMOVUPS Y4, (R8)
	VMOVUPS Y5, 32(R8)
	VMOVUPS Y6, 64(R8)
	VMOVUPS Y7, 96(R8)
	VADDPS Y6, Y4, Y4
	VADDPS Y7, Y5, Y5
	VADDPS Y5, Y4, Y4
	FOLD
	VZEROUPPER
	MOVSS X4, ret+56(FP)
	RET

// func scaleByGainAVX2(dst, x, gain *float32, inv float32, n int)
TEXT ·scaleByGainAVX2(SB), NOSPLIT, $0-40
	MOVQ dst+0(FP), DI
	MOVQ x+8(FP), SI
	MOVQ gain+16(FP), DX
	VBROADCASTSS inv+24(FP), V10
	MOVQ n+32(FP), CX
	SHLQ $2, CX
	XORQ AX, AX

loop:
	SCALE_BY_GAIN
	CMPQ AX, CX
	JB loop
	VZEROUPPER
	RET

// func normGradientAVX2(dx, x, dy, gain *float32, inv, mean float32, n int)
TEXT ·normGradientAVX2(SB), NOSPLIT, $0-48
	MOVQ dx+0(FP), DI
	MOVQ x+8(FP), SI
	MOVQ dy+16(FP), DX
	MOVQ gain+24(FP), BX
	VBROADCASTSS inv+32(FP), V10
	VBROADCASTSS mean+36(FP), V11
	MOVQ n+40(FP), CX
	SHLQ $2, CX
	XORQ AX, AX

loop:
	GRADIENT
	CMPQ AX, CX
	JB loop
	VZEROUPPER
	RET
