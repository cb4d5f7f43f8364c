//go:build !noasm

#include "textflag.h"
#include "zmm_amd64.h"

// In the kernels with lanes, AX counts bytes up to CX, 32 elements per iteration, and R8
// points to the lanes in memory.

#define BEGIN_LANES(log) \
	SHLQ $log, CX \
	XORQ AX, AX \
	VXORPS X12, X12, X12 \
	VXORPS X13, X13, X13 \
	VXORPS X14, X14, X14 \
	VXORPS X15, X15, X15

#define STORE_LANES(at, lanes) \
	VMOVUPS lanes, at(R8)

// END_LANES stores the lanes and sets X0 to their sum.
#define END_LANES \
	THIRTYTWO(STORE_LANES) \
	HALVE_LANES(VADDPS) \
	FOLD(VADDPS, VADDSS) \
	VZEROUPPER

#define DOT_VECTOR(at, lanes) \
	VMOVUPS at(SI)(AX*1), V0 \
	VMULPS at(DX)(AX*1), V0, V0 \
	VADDPS V0, lanes, lanes

#define DOT_LANES \
	MOVQ lanes+0(FP), R8 \
	MOVQ x+8(FP), SI \
	MOVQ y+16(FP), DX \
	MOVQ n+24(FP), CX \
	BEGIN_LANES(2) \
loop: \
	THIRTYTWO(DOT_VECTOR) \
	ADDQ $128, AX \
	CMPQ AX, CX \
	JB loop \
	END_LANES \
	MOVSS X0, ret+32(FP) \
	RET

#define DOT_VECTOR_BF16(at, lanes) \
	VPMOVZXWD (at/2)(SI)(AX*1), V0 \
	VPMOVZXWD (at/2)(DX)(AX*1), V1 \
	VPSLLD $16, V0, V0 \
	VPSLLD $16, V1, V1 \
	VMULPS V1, V0, V0 \
	VADDPS V0, lanes, lanes

#define DOT_LANES_BF16 \
	MOVQ lanes+0(FP), R8 \
	MOVQ x+8(FP), SI \
	MOVQ y+16(FP), DX \
	MOVQ n+24(FP), CX \
	BEGIN_LANES(1) \
loop: \
	THIRTYTWO(DOT_VECTOR_BF16) \
	ADDQ $64, AX \
	CMPQ AX, CX \
	JB loop \
	END_LANES \
	MOVSS X0, ret+32(FP) \
	RET

// GAIN_VECTOR adds dy·x̂ to dgain and g·x̂ to lanes. x̂ = x·inv is in V0; V1 has dy, then
// g = dy ⊙ gain.
#define GAIN_VECTOR(at, lanes) \
	VMULPS at(SI)(AX*1), V10, V0 \
	VMOVUPS at(DX)(AX*1), V1 \
	VMULPS V0, V1, V2 \
	VADDPS at(DI)(AX*1), V2, V2 \
	VMOVUPS V2, at(DI)(AX*1) \
	VMULPS at(BX)(AX*1), V1, V1 \
	VMULPS V0, V1, V1 \
	VADDPS V1, lanes, lanes

#define GAIN_LANES \
	MOVQ lanes+0(FP), R8 \
	MOVQ dgain+8(FP), DI \
	MOVQ x+16(FP), SI \
	MOVQ dy+24(FP), DX \
	MOVQ gain+32(FP), BX \
	VBROADCASTSS inv+40(FP), V10 \
	MOVQ n+48(FP), CX \
	BEGIN_LANES(2) \
loop: \
	THIRTYTWO(GAIN_VECTOR) \
	ADDQ $128, AX \
	CMPQ AX, CX \
	JB loop \
	END_LANES \
	MOVSS X0, ret+56(FP) \
	RET

#define SCALE_VECTOR \
	VMULPS (SI)(AX*1), V10, V0 \
	VMULPS (DX)(AX*1), V0, V0 \
	VMOVUPS V0, (DI)(AX*1)

#define SCALE_BY_GAIN \
	MOVQ dst+0(FP), DI \
	MOVQ x+8(FP), SI \
	MOVQ gain+16(FP), DX \
	VBROADCASTSS inv+24(FP), V10 \
	MOVQ n+32(FP), CX \
	LOOP(SCALE_VECTOR) \
	VZEROUPPER \
	RET

// GRADIENT_VECTOR computes inv·(g − x̂·mean), with inv in V10 and mean in V11.
#define GRADIENT_VECTOR \
	VMULPS (SI)(AX*1), V10, V0 \
	VMULPS V11, V0, V0 \
	VMOVUPS (DX)(AX*1), V1 \
	VMULPS (BX)(AX*1), V1, V1 \
	VSUBPS V0, V1, V1 \
	VMULPS V10, V1, V1 \
	VMOVUPS V1, (DI)(AX*1)

#define NORM_GRADIENT \
	MOVQ dx+0(FP), DI \
	MOVQ x+8(FP), SI \
	MOVQ dy+16(FP), DX \
	MOVQ gain+24(FP), BX \
	VBROADCASTSS inv+32(FP), V10 \
	VBROADCASTSS mean+36(FP), V11 \
	MOVQ n+40(FP), CX \
	LOOP(GRADIENT_VECTOR) \
	VZEROUPPER \
	RET

// func dotLanesVectors(lanes *[32]float32, x, y *float32, n int) float32
TEXT ·dotLanesVectors(SB), NOSPLIT, $0-36
	WIDEST(·dotLanesAVX512<>(SB), ·dotLanesAVX2<>(SB))

// func dotLanesBF16Vectors(lanes *[32]float32, x, y *uint16, n int) float32
TEXT ·dotLanesBF16Vectors(SB), NOSPLIT, $0-36
	WIDEST(·dotLanesBF16AVX512<>(SB), ·dotLanesBF16AVX2<>(SB))

// func gainLanesVectors(lanes *[32]float32, dgain, x, dy, gain *float32, inv float32, n int) float32
TEXT ·gainLanesVectors(SB), NOSPLIT, $0-60
	WIDEST(·gainLanesAVX512<>(SB), ·gainLanesAVX2<>(SB))

// func scaleByGainVectors(dst, x, gain *float32, inv float32, n int)
TEXT ·scaleByGainVectors(SB), NOSPLIT, $0-40
	WIDEST(·scaleByGainAVX512<>(SB), ·scaleByGainAVX2<>(SB))

// func normGradientVectors(dx, x, dy, gain *float32, inv, mean float32, n int)
TEXT ·normGradientVectors(SB), NOSPLIT, $0-48
	WIDEST(·normGradientAVX512<>(SB), ·normGradientAVX2<>(SB))

TEXT ·dotLanesAVX512<>(SB), NOSPLIT, $0-36
	DOT_LANES

TEXT ·dotLanesBF16AVX512<>(SB), NOSPLIT, $0-36
	DOT_LANES_BF16

TEXT ·gainLanesAVX512<>(SB), NOSPLIT, $0-60
	GAIN_LANES

TEXT ·scaleByGainAVX512<>(SB), NOSPLIT, $0-40
	SCALE_BY_GAIN

TEXT ·normGradientAVX512<>(SB), NOSPLIT, $0-48
	NORM_GRADIENT

#include "ymm_amd64.h"

TEXT ·dotLanesAVX2<>(SB), NOSPLIT, $0-36
	DOT_LANES

TEXT ·dotLanesBF16AVX2<>(SB), NOSPLIT, $0-36
	DOT_LANES_BF16

TEXT ·gainLanesAVX2<>(SB), NOSPLIT, $0-60
	GAIN_LANES

TEXT ·scaleByGainAVX2<>(SB), NOSPLIT, $0-40
	SCALE_BY_GAIN

TEXT ·normGradientAVX2<>(SB), NOSPLIT, $0-48
	NORM_GRADIENT
