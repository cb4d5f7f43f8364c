//go:build !noasm

#include "go_asm.h"
#include "textflag.h"
#include "lines_amd64.h"

// Rounding to nearest, see lines_amd64.h.

#define ORDER    Z16
#define GATHER   Z17
#define LIMIT    Z20
#define SMALLEST Z21
#define MAGICS0  Z22
#define MAGICS1  Z23
#define BYTE0    Z24
#define WORD0    Z25

#define BEGIN_NEAREST(signs) \
	BEGIN(signs) \
	VPBROADCASTD castVectors_limit(R8), LIMIT \
	VPBROADCASTD castVectors_smallest(R8), SMALLEST \
	VMOVDQU32    castVectors_magics(R8), MAGICS0 \
	VMOVDQU32    (castVectors_magics+64)(R8), MAGICS1 \
	MOVL         $0x00ff00ff, AX \
	VPBROADCASTD AX, BYTE0 \
	MOVL         $0x0000ffff, AX \
	VPBROADCASTD AX, WORD0

#define ORDERS(gather, order) \
	VBROADCASTI32X4 gather, GATHER \
	VMOVDQU64       order, ORDER

// NEAREST is castNearest of the magnitude x. The low byte of x is the result, the bytes
// above are undefined. VPERMI2D looks up the summand by the low five bits of the
// exponent; it includes what castNearest adds after the sum. On some processors,
// floating-point min has twice the throughput of integer min; its result for NaN is
// never used (rejectNaN).
#define NEAREST(x, t) \
	VMINPS   LIMIT, x, x \
	VMAXPS   SMALLEST, x, t \
	VPSRLD   $23, t, t \
	VPERMI2D MAGICS1, MAGICS0, t \
	VADDPS   t, x, x

#define NEAREST_F32(at, x, code, t) \
	VMOVUPS at(SI), x \
	PREFETCH(at) \
	VPANDD  ABS, x, code \
	VPMAXUD code, TOP, TOP \
	VMULPS  SCALE, code, code \
	NEAREST(code, t)

// MERGE_LOW merges the low bytes of Z4-Z7 into Z4: each 32-bit lane gets one byte of each.
#define MERGE_LOW \
	VPSLLD     $8, Z5, Z5 \
	VPSLLD     $8, Z7, Z7 \
	VPTERNLOGD $0xe4, BYTE0, Z5, Z4 \
	VPTERNLOGD $0xe4, BYTE0, Z7, Z6 \
	VPSLLD     $16, Z6, Z6 \
	VPTERNLOGD $0xe4, WORD0, Z6, Z4

// SIGNED gives the codes Z4 the signs of the elements Z0-Z3 and puts them in order. VPACK
// narrows the elements to bytes, which keeps their signs; GATHER first brings the codes
// into the order of these bytes within each 128-bit lane.
#define SIGNED \
	VPSHUFB    GATHER, Z4, Z4 \
	VPACKSSDW  Z1, Z0, Z0 \
	VPACKSSDW  Z3, Z2, Z2 \
	VPACKSSWB  Z2, Z0, Z0 \
	VPTERNLOGD $0xd8, SIGNS, Z0, Z4 \
	VPERMD     Z4, ORDER, Z4

// func quantize8AVX512(dst *uint8, src *float32, n int, c *castVectors, scale float32, nonTemporal bool) (amax float32)
TEXT ·quantize8AVX512(SB), NOSPLIT, $0-44
	BEGIN_NEAREST(0x7fffffff)
	ORDERS(lowBytes<>(SB), quarters<>(SB))
	MOVBLZX nonTemporal+36(FP), R9
	PCALIGN $32

loop:
	NEAREST_F32(0, Z0, Z4, Z8)
	NEAREST_F32(64, Z1, Z5, Z9)
	NEAREST_F32(128, Z2, Z6, Z10)
	NEAREST_F32(192, Z3, Z7, Z11)
	MERGE_LOW
	SIGNED
	END(4)
	FOLD_TOP
	RETURN(amax+40(FP))
	NON_TEMPORAL

// GATHER of SIGNED: byte 0 of the four 32-bit lanes, then byte 1, and so on.
DATA lowBytes<>+0(SB)/8, $0x0d0905010c080400
DATA lowBytes<>+8(SB)/8, $0x0f0b07030e0a0602
GLOBL lowBytes<>(SB), RODATA|NOPTR, $16

#define NEAREST_PAIRS(pairs, at, x, lower, upper, t) \
	pairs(at, x, lower, upper) \
	NEAREST(lower, t) \
	NEAREST(upper, t) \
	VPSLLD     $16, upper, upper \
	VPTERNLOGD $0xe4, WORD0, upper, lower

// SIGNED_WORDS is SIGNED for the 16-bit elements Z0 and Z1.
#define SIGNED_WORDS \
	VPSHUFB    GATHER, Z4, Z4 \
	VPACKSSWB  Z1, Z0, Z0 \
	VPTERNLOGD $0xd8, SIGNS, Z0, Z4 \
	VPERMQ     Z4, ORDER, Z4

#define NEAREST_WORDS(pairs) \
	NEAREST_PAIRS(pairs, 0, Z0, Z4, Z5, Z8) \
	NEAREST_PAIRS(pairs, 64, Z1, Z6, Z7, Z9) \
	VPSLLD     $8, Z6, Z6 \
	VPTERNLOGD $0xe4, BYTE0, Z6, Z4 \
	SIGNED_WORDS

// func quantizeBF16AVX512(dst *uint8, src *uint16, n int, c *castVectors, scale float32, nonTemporal bool) (amax float32)
TEXT ·quantizeBF16AVX512(SB), NOSPLIT, $0-44
	BEGIN_NEAREST(0x7fff7fff)
	ORDERS(evenBytes<>(SB), halves<>(SB))
	MOVBLZX nonTemporal+36(FP), R9
	PCALIGN $32

loop:
	NEAREST_WORDS(PAIRS_BF16)
	END(2)
	FOLD_TOP_WORDS
	VPSLLD     $16, X0, X0
	RETURN(amax+40(FP))
	NON_TEMPORAL

DATA evenBytes<>+0(SB)/8, $0x0e0c0a0806040200
DATA evenBytes<>+8(SB)/8, $0x0f0d0b0907050301
GLOBL evenBytes<>(SB), RODATA|NOPTR, $16

// func quantizeF16AVX512(dst *uint8, src *uint16, n int, c *castVectors, scale, scaleInv float32, nonTemporal bool) (amax float32)
TEXT ·quantizeF16AVX512(SB), NOSPLIT, $0-52
	BEGIN_NEAREST(0x7fff7fff)
	BEGIN_F16(scaleInv+36(FP))
	ORDERS(evenBytes<>(SB), halves<>(SB))
	MOVBLZX nonTemporal+40(FP), R9
	PCALIGN $32

loop:
	NEAREST_WORDS(PAIRS_F16)
	END(2)
	RETURN_F16(scaleInv+36(FP), amax+48(FP))
	NON_TEMPORAL
