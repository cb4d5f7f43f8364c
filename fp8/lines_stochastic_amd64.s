//go:build !noasm

#include "go_asm.h"
#include "textflag.h"
#include "lines_amd64.h"

// Stochastic rounding, see lines_amd64.h.

#define FLOOR   Z20
#define CEILING Z21
#define PLACES  Z22
#define UNITS   Z23
#define LOWER   Z24
#define UNITS2  Z25
#define BYTE3   Z26
#define MIX1    Z28
#define MIX2    Z29
#define FIRST   Z30
#define SECOND  Z31
#define WEYL    Z16
#define KEY     Z17
#define STEP    Z18

// RANDOM sets w to the next words of Random. WEYL holds their Weyl values.
#define RANDOM(w, t) \
	VPSRLD     $16, WEYL, w \
	VPTERNLOGD $0x96, KEY, WEYL, w \
	VPMULLD    MIX1, w, w \
	VPSRLD     $15, w, t \
	VPTERNLOGD $0x96, WEYL, t, w \
	VPADDD     STEP, WEYL, WEYL \
	VPMULLD    MIX2, w, w \
	VPSRLD     $16, w, t \
	VPXORD     t, w, w

// BEGIN_RANDOM takes the order of the words in a vector, and the VPSHUFB controls that
// select the random bits of two vectors of elements from one of words.
#define BEGIN_RANDOM(order, bits, first, key) \
	VPBROADCASTD    stochasticVectors_mix1(R8), MIX1 \
	VPBROADCASTD    stochasticVectors_mix2(R8), MIX2 \
	VPBROADCASTD    stochasticVectors_floor(R8), FLOOR \
	VPBROADCASTD    stochasticVectors_ceiling(R8), CEILING \
	VPBROADCASTD    stochasticVectors_places(R8), PLACES \
	VPBROADCASTD    stochasticVectors_units(R8), UNITS \
	MOVL            $8, AX \
	VPBROADCASTD    AX, Z0 \
	VPSUBD          PLACES, Z0, LOWER \
	VPSLLD          $23, Z0, Z0 \
	VPSUBD          Z0, UNITS, UNITS2 \
	MOVL            $0xff000000, AX \
	VPBROADCASTD    AX, BYTE3 \
	VBROADCASTI32X4 bits+0(SB), FIRST \
	VBROADCASTI32X4 bits+16(SB), SECOND \
	MOVL            $const_golden32, AX \
	VPBROADCASTD    AX, STEP \
	VPMULLD         order, STEP, WEYL \
	VPSLLD          $4, STEP, STEP \
	VPBROADCASTD    first, Z0 \
	VPADDD          Z0, WEYL, WEYL \
	VPBROADCASTD    key, KEY

// PLACED saturates the magnitude x and shifts it to the place of its code with move.
// Values below FLOOR get there by a multiplication with units and a conversion to
// integer.
#define PLACED(x, t, move, places, units) \
	VMINPS     CEILING, x, x \
	VCMPPS     $1, FLOOR, x, K1 \
	VMULPS     units, x, t \
	move       places, x, x \
	VCVTTPS2DQ t, K1, x

// STOCHASTIC is castStochastic of the magnitudes x and y with the random words w. The
// codes are in bytes 3 (x) and 2 (y) of x. Sixteen fraction bits lie below each code until
// the merge. The merge and the sign replace the bits above the codes.
#define STOCHASTIC(x, y, w, t) \
	PLACED(x, t, VPSLLVD, PLACES, UNITS) \
	VPSHUFB    FIRST, w, t \
	VPADDD     t, x, x \
	PLACED(y, t, VPSRLVD, LOWER, UNITS2) \
	VPSHUFB    SECOND, w, t \
	VPADDD     t, y, y \
	VPTERNLOGD $0xe4, BYTE3, y, x

// MERGE_TOP merges the codes in the upper words of Z4 and Z6 into Z4.
#define MERGE_TOP \
	VPSRLD          $16, Z6, Z6 \
	VPTERNLOGD.BCST $0xe4, words<>+4(SB), Z6, Z4

#define SIGNED_RANDOM \
	VPSHUFB         topBytes<>(SB), Z4, Z4 \
	VPACKSSDW       Z1, Z0, Z0 \
	VPACKSSDW       Z3, Z2, Z2 \
	VPACKSSWB       Z2, Z0, Z0 \
	VPTERNLOGD.BCST $0xd8, words<>+0(SB), Z0, Z4 \
	VMOVDQU64       quarters<>(SB), Z8 \
	VPERMD          Z4, Z8, Z4

#define MAGNITUDES(at, x, code) \
	VMOVUPS at(SI), x \
	PREFETCH(at) \
	VPANDD  ABS, x, code \
	VPMAXUD code, TOP, TOP \
	VMULPS  SCALE, code, code

// func quantize8StochasticAVX512(dst *uint8, src *float32, n int, c *stochasticVectors, scale float32, first, key uint32, nonTemporal bool) (amax float32)
TEXT ·quantize8StochasticAVX512(SB), NOSPLIT, $0-52
	BEGIN(0x7fffffff)
	BEGIN_RANDOM(·lanes(SB), bits<>, first+36(FP), key+40(FP))
	MOVBLZX nonTemporal+44(FP), R9
	PCALIGN $32

loop:
	RANDOM(Z8, Z10)
	MAGNITUDES(0, Z0, Z4)
	MAGNITUDES(64, Z1, Z5)
	STOCHASTIC(Z4, Z5, Z8, Z10)
	RANDOM(Z9, Z11)
	MAGNITUDES(128, Z2, Z6)
	MAGNITUDES(192, Z3, Z7)
	STOCHASTIC(Z6, Z7, Z9, Z11)
	MERGE_TOP
	SIGNED_RANDOM
	END(4)
	FOLD_TOP
	RETURN(amax+48(FP))
	NON_TEMPORAL

#define STOCHASTIC_PAIRS(pairs, at, x, even, odd, w, t) \
	RANDOM(w, t) \
	pairs(at, x, even, odd) \
	STOCHASTIC(odd, even, w, t)

#define STOCHASTIC_WORDS(pairs) \
	STOCHASTIC_PAIRS(pairs, 0, Z0, Z5, Z4, Z8, Z10) \
	STOCHASTIC_PAIRS(pairs, 64, Z1, Z7, Z6, Z9, Z11) \
	MERGE_TOP \
	VPSHUFB         topPairs<>(SB), Z4, Z4 \
	VPACKSSWB       Z1, Z0, Z0 \
	VPTERNLOGD.BCST $0xd8, words<>+0(SB), Z0, Z4 \
	VMOVDQU64       halves<>(SB), Z8 \
	VPERMQ          Z4, Z8, Z4

// func quantizeBF16StochasticAVX512(dst *uint8, src *uint16, n int, c *stochasticVectors, scale float32, first, key uint32, nonTemporal bool) (amax float32)
TEXT ·quantizeBF16StochasticAVX512(SB), NOSPLIT, $0-52
	BEGIN(0x7fff7fff)
	BEGIN_RANDOM(inOrder<>(SB), bitsWords<>, first+36(FP), key+40(FP))
	MOVBLZX nonTemporal+44(FP), R9
	PCALIGN $32

loop:
	STOCHASTIC_WORDS(PAIRS_BF16)
	END(2)
	FOLD_TOP_WORDS
	VPSLLD          $16, X0, X0
	RETURN(amax+48(FP))
	NON_TEMPORAL

// func quantizeF16StochasticAVX512(dst *uint8, src *uint16, n int, c *stochasticVectors, scale, scaleInv float32, first, key uint32, nonTemporal bool) (amax float32)
TEXT ·quantizeF16StochasticAVX512(SB), NOSPLIT, $0-60
	BEGIN(0x7fff7fff)
	BEGIN_F16(scaleInv+36(FP))
	BEGIN_RANDOM(inOrder<>(SB), bitsWords<>, first+40(FP), key+44(FP))
	MOVBLZX nonTemporal+48(FP), R9
	PCALIGN $32

loop:
	STOCHASTIC_WORDS(PAIRS_F16)
	END(2)
	RETURN_F16(scaleInv+36(FP), amax+56(FP))
	NON_TEMPORAL

// VPSHUFB controls that select the random bits of two vectors from one of words: the
// first leaves eight zero bits below, the second none.
DATA bits<>+0(SB)/8, $0x8003028080010080
DATA bits<>+8(SB)/8, $0x8007068080050480
DATA bits<>+16(SB)/8, $0x80800b0a80800908
DATA bits<>+24(SB)/8, $0x80800f0e80800d0c
GLOBL bits<>(SB), RODATA|NOPTR, $32

DATA bitsWords<>+0(SB)/8, $0x8007068080030280
DATA bitsWords<>+8(SB)/8, $0x800f0e80800b0a80
DATA bitsWords<>+16(SB)/8, $0x8080050480800100
DATA bitsWords<>+24(SB)/8, $0x80800d0c80800908
GLOBL bitsWords<>(SB), RODATA|NOPTR, $32

// VPSHUFB controls that bring the result of MERGE_TOP into the order of the packed
// elements.
DATA topBytes<>+0(SB)/8, $0x0e0a06020f0b0703
DATA topBytes<>+8(SB)/8, $0x0c0804000d090501
DATA topBytes<>+16(SB)/8, $0x0e0a06020f0b0703
DATA topBytes<>+24(SB)/8, $0x0c0804000d090501
DATA topBytes<>+32(SB)/8, $0x0e0a06020f0b0703
DATA topBytes<>+40(SB)/8, $0x0c0804000d090501
DATA topBytes<>+48(SB)/8, $0x0e0a06020f0b0703
DATA topBytes<>+56(SB)/8, $0x0c0804000d090501
GLOBL topBytes<>(SB), RODATA|NOPTR, $64

DATA topPairs<>+0(SB)/8, $0x0f0e0b0a07060302
DATA topPairs<>+8(SB)/8, $0x0d0c090805040100
DATA topPairs<>+16(SB)/8, $0x0f0e0b0a07060302
DATA topPairs<>+24(SB)/8, $0x0d0c090805040100
DATA topPairs<>+32(SB)/8, $0x0f0e0b0a07060302
DATA topPairs<>+40(SB)/8, $0x0d0c090805040100
DATA topPairs<>+48(SB)/8, $0x0f0e0b0a07060302
DATA topPairs<>+56(SB)/8, $0x0d0c090805040100
GLOBL topPairs<>(SB), RODATA|NOPTR, $64

// Word numbers in ascending order.
DATA inOrder<>+0(SB)/8, $0x0000000100000000
DATA inOrder<>+8(SB)/8, $0x0000000300000002
DATA inOrder<>+16(SB)/8, $0x0000000500000004
DATA inOrder<>+24(SB)/8, $0x0000000700000006
DATA inOrder<>+32(SB)/8, $0x0000000900000008
DATA inOrder<>+40(SB)/8, $0x0000000b0000000a
DATA inOrder<>+48(SB)/8, $0x0000000d0000000c
DATA inOrder<>+56(SB)/8, $0x0000000f0000000e
GLOBL inOrder<>(SB), RODATA|NOPTR, $64
