//go:build !noasm

#include "textflag.h"
#include "zmm_amd64.h"

#define ADD_TRUNCATED_VECTOR \
	VCVTTPS2DQ (SI)(AX*1), V0 \
	VPADDD (DI)(AX*1), V0, V0 \
	VMOVUPS V0, (DI)(AX*1)

#define ADD_TRUNCATED \
	MOVQ sums+0(FP), DI \
	MOVQ x+8(FP), SI \
	MOVQ n+16(FP), CX \
	LOOP(ADD_TRUNCATED_VECTOR) \
	VZEROUPPER \
	RET

#define FROM_INT32_VECTOR \
	VCVTDQ2PS (SI)(AX*1), V0 \
	VMOVUPS V0, (DI)(AX*1)

#define FROM_INT32 \
	MOVQ dst+0(FP), DI \
	MOVQ x+8(FP), SI \
	MOVQ n+16(FP), CX \
	LOOP(FROM_INT32_VECTOR) \
	VZEROUPPER \
	RET

// func addTruncatedVectors(sums *int32, x *float32, n int)
TEXT ·addTruncatedVectors(SB), NOSPLIT, $0-24
	WIDEST(·addTruncatedAVX512<>(SB), ·addTruncatedAVX2<>(SB))

// func fromInt32Vectors(dst *float32, x *int32, n int)
TEXT ·fromInt32Vectors(SB), NOSPLIT, $0-24
	WIDEST(·fromInt32AVX512<>(SB), ·fromInt32AVX2<>(SB))

TEXT ·addTruncatedAVX512<>(SB), NOSPLIT, $0-24
	ADD_TRUNCATED

TEXT ·fromInt32AVX512<>(SB), NOSPLIT, $0-24
	FROM_INT32

#include "ymm_amd64.h"

TEXT ·addTruncatedAVX2<>(SB), NOSPLIT, $0-24
	ADD_TRUNCATED

TEXT ·fromInt32AVX2<>(SB), NOSPLIT, $0-24
	FROM_INT32
