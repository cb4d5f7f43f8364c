//go:build !noasm

#include "go_asm.h"
#include "textflag.h"

// AVX-512 casts to eight bits, 64 elements per iteration: one cache line of codes.
// Storing each vector of elements by itself would write a quarter of a line and take two
// instructions to narrow; merging four vectors of codes into one takes nine. The
// arithmetic is that of cast_amd64.s, which casts the remaining elements.
//
// DI, SI and CX are dst, src and the number of elements left; R9 is nonTemporal. Z0-Z3
// hold elements, Z4-Z7 their codes, Z8-Z11 are temporaries.

#define TOP     Z12
#define SCALE   Z13
#define ABS     Z14
#define UPPER   Z15
#define ORDER   Z16
#define GATHER  Z17
#define SIGNS   Z18

// F16 sources: scaleInv, and the multipliers that shift the halves of a lane by 13 bits.
#define INVERSE Z19
#define LOWER13 Z15
#define UPPER13 Z27

// Rounding to nearest.
#define LIMIT    Z20
#define SMALLEST Z21
#define MAGICS0  Z22
#define MAGICS1  Z23
#define BYTE0    Z24
#define WORD0    Z25

// Stochastic rounding.
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

// PREFETCH loads elements far enough ahead for data outside the caches, where the
// hardware prefetcher stops at each page.
#define PREFETCH(at) PREFETCHT0 (4096+at)(SI)

#define BEGIN(signs) \
	MOVQ         dst+0(FP), DI \
	MOVQ         src+8(FP), SI \
	MOVQ         n+16(FP), CX \
	MOVQ         c+24(FP), R8 \
	VBROADCASTSS scale+32(FP), SCALE \
	VPXORD       TOP, TOP, TOP \
	MOVL         $0x80808080, AX \
	VPBROADCASTD AX, SIGNS \
	MOVL         $signs, AX \
	VPBROADCASTD AX, ABS \
	MOVL         $0x7fff0000, AX \
	VPBROADCASTD AX, UPPER

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

// END stores the codes Z4 to a line of dst and starts the next iteration. NON_TEMPORAL,
// placed after RETURN, bypasses the caches, which avoids reading the line first.
#define END(bytes) \
	TESTL     R9, R9 \
	JNZ       nontemporal \
	VMOVDQU64 Z4, (DI) \
next: \
	ADDQ      $(64*bytes), SI \
	ADDQ      $64, DI \
	SUBQ      $64, CX \
	JNZ       loop

#define NON_TEMPORAL \
nontemporal: \
	VMOVNTDQ Z4, (DI) \
	JMP      next

// FOLD_TOP reduces TOP to its largest lane, in X0.
#define FOLD_TOP \
	VEXTRACTI64X4 $1, TOP, Y0 \
	VPMAXUD       Y0, Y12, Y0 \
	VEXTRACTI128  $1, Y0, X1 \
	VPMAXUD       X1, X0, X0 \
	VPSHUFD       $0x4e, X0, X1 \
	VPMAXUD       X1, X0, X0 \
	VPSHUFD       $0xb1, X0, X1 \
	VPMAXUD       X1, X0, X0

// FOLD_TOP_WORDS reduces TOP to its largest 16-bit word, in X0.
#define FOLD_TOP_WORDS \
	VPSRLD  $16, TOP, Z0 \
	VPSLLD  $16, TOP, TOP \
	VPSRLD  $16, TOP, TOP \
	VPMAXUD Z0, TOP, TOP \
	FOLD_TOP

#define RETURN(amax) \
	VMOVSS X0, amax \
	VZEROUPPER \
	RET

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

DATA quarters<>+0(SB)/8, $0x0000000400000000
DATA quarters<>+8(SB)/8, $0x0000000c00000008
DATA quarters<>+16(SB)/8, $0x0000000500000001
DATA quarters<>+24(SB)/8, $0x0000000d00000009
DATA quarters<>+32(SB)/8, $0x0000000600000002
DATA quarters<>+40(SB)/8, $0x0000000e0000000a
DATA quarters<>+48(SB)/8, $0x0000000700000003
DATA quarters<>+56(SB)/8, $0x0000000f0000000b
GLOBL quarters<>(SB), RODATA|NOPTR, $64

// Each 32-bit lane holds two BF16 elements. Clearing the lower half gives the upper
// element as float32; shifting the lower half up gives the lower element. Signs and the
// amax use 16-bit words.
#define PAIRS_BF16(at, x, lower, upper) \
	VMOVDQU64 at(SI), x \
	PREFETCH(at) \
	VPANDD    ABS, x, upper \
	VPMAXUW   upper, TOP, TOP \
	VPSLLD    $16, upper, lower \
	VPANDD    UPPER, upper, upper \
	VMULPS    SCALE, lower, lower \
	VMULPS    SCALE, upper, upper

// The bits of an F16 magnitude, shifted left by 13, are a float32 that is 2^112 times too
// small, for subnormals too. VSCALEFPS corrects that at the same speed for subnormal
// inputs. VMULPS, with 2^112 in its multiplier, took up to twice as long if subnormals
// were few (Zen 5). The amax is the value of the largest magnitude of the codes times
// scaleInv, which is positive.
#define PAIRS_F16(at, x, lower, upper) \
	VMOVDQU64 at(SI), x \
	PREFETCH(at) \
	VPANDD    ABS, x, upper \
	VPMAXUW   upper, TOP, TOP \
	VPMADDWD  LOWER13, upper, lower \
	VPMADDWD  UPPER13, upper, upper \
	VSCALEFPS.BCST words<>+8(SB), lower, lower \
	VSCALEFPS.BCST words<>+8(SB), upper, upper \
	VMULPS    INVERSE, lower, lower \
	VMULPS    INVERSE, upper, upper \
	VMULPS    SCALE, lower, lower \
	VMULPS    SCALE, upper, upper

#define BEGIN_F16(scaleInv) \
	VBROADCASTSS scaleInv, INVERSE \
	MOVL         $0x2000, AX \
	VPBROADCASTD AX, LOWER13 \
	VPSLLD       $16, LOWER13, UPPER13

#define RETURN_F16(scaleInv, amax) \
	FOLD_TOP_WORDS \
	VCVTPH2PS X0, X0 \
	VMULSS    scaleInv, X0, X0 \
	RETURN(amax)

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

DATA halves<>+0(SB)/8, $0
DATA halves<>+8(SB)/8, $2
DATA halves<>+16(SB)/8, $4
DATA halves<>+24(SB)/8, $6
DATA halves<>+32(SB)/8, $1
DATA halves<>+40(SB)/8, $3
DATA halves<>+48(SB)/8, $5
DATA halves<>+56(SB)/8, $7
GLOBL halves<>(SB), RODATA|NOPTR, $64

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

// Mask of the sign bytes, mask of the upper words, 112 as float32.
DATA words<>+0(SB)/4, $0x80808080
DATA words<>+4(SB)/4, $0xffff0000
DATA words<>+8(SB)/4, $0x42e00000
GLOBL words<>(SB), RODATA|NOPTR, $12

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
