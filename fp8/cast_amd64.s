//go:build !noasm

#include "go_asm.h"
#include "textflag.h"
#include "zmm_amd64.h"
#include "cast_amd64.h"

// Casts to narrower formats, of the parts in cast_amd64.h. lines_amd64.s and
// lines_stochastic_amd64.s have the AVX-512 casts to whole cache lines of eight-bit codes.

#define AMAX \
	MOVQ x+0(FP), SI \
	MOVQ n+8(FP), CX \
	MOVQ c+16(FP), R8 \
	VBROADCASTSS castVectors_abs(R8), ABS \
	XOR  TOP, TOP, TOP \
loop: \
	MAGNITUDES(LOAD) \
	STEP_ON(4, 0) \
	SUBQ $WIDTH, CX \
	JNZ  loop \
	FOLD_TOP \
	VMOVSS X6, amax+24(FP) \
	VZEROUPPER \
	RET

// CODES sets code to the codes, without sign, of the eight elements src at(SI).
#define CODES(at, src, code) \
	VMOVUPS at(SI), src \
	VPAND   ABS, src, code \
	VPMAXUD code, TOP, TOP \
	VMULPS  SCALE, code, code \
	VMINPS  LIMIT, code, code \
	ROUND(code) \
	VPAND   NAN, code, code

// QUANTIZE8 casts 32 elements at a time, then eight. The bytes of four vectors are packed
// within 128-bit lanes, so that VPERMD puts them in order. The bits of the float32 are packed
// too, as signed integers: saturation keeps the top bit, which is the sign. QUANTIZE8 prefetches
// dst: the cast is fast enough to stall on the lines it writes.
#define QUANTIZE8 \
	BEGIN_SCALED \
	NEAREST_CONSTANTS \
	LOW_BYTES \
	VMOVDQU      packed<>+0(SB), Y10 \
	VPBROADCASTD words<>+8(SB), Y11 \
	SUBQ         $32, CX \
	JLT          rest \
many: \
	PREFETCHT0 2560(SI) \
	PREFETCHT0 2624(SI) \
	PREFETCHT0 1024(DI) \
	CODES(0, Y8, Y0) \
	CODES(32, Y9, Y1) \
	VPACKUSDW Y1, Y0, Y0 \
	VPACKSSDW Y9, Y8, Y8 \
	CODES(64, Y9, Y1) \
	CODES(96, Y12, Y2) \
	VPACKUSDW Y2, Y1, Y1 \
	VPACKSSDW Y12, Y9, Y9 \
	VPACKUSWB Y1, Y0, Y0 \
	VPACKSSWB Y9, Y8, Y8 \
	VPAND     Y11, Y8, Y8 \
	VPOR      Y8, Y0, Y0 \
	VPERMD    Y0, Y10, Y0 \
	VMOVDQU   Y0, (DI) \
	ADDQ      $128, SI \
	ADDQ      $32, DI \
	SUBQ      $32, CX \
	JGE       many \
rest: \
	ADDQ $32, CX \
	JZ   done \
eight: \
	SCALED(LOAD) \
	NEAREST(V2) \
	SIGN_FROM(24) \
	STORE_LOW_BYTES \
	STEP_ON(4, 1) \
	SUBQ $8, CX \
	JNZ  eight \
done: \
	FOLD_TOP \
	VMOVSS X6, amax+40(FP) \
	VZEROUPPER \
	RET

// NEAREST_F16 casts the vector of F16 elements at(SI).
#define NEAREST_F16(at, to) \
	VCVTPH2PS at(SI), SRC \
	VMULPS    SCALE_INV, SRC, V0 \
	VMULPS    SCALE, V0, V0 \
	LIMITED(V0, V2) \
	ROUND(V2) \
	SIGN_FROM(24) \
	STORE_LOW_BYTES_AT(to)

// The amax is the value of the largest magnitude of the codes times scaleInv, which is
// positive.
#define QUANTIZE_F16 \
	BEGIN_SCALED \
	SCALE_INV_FROM(scaleInv+36(FP)) \
	VPBROADCASTD words<>+0(SB), MAGNITUDES16 \
	NEAREST_CONSTANTS \
	LOW_BYTES \
loop: \
	PREFETCHT0 2560(SI) \
	PREFETCHT0 1024(DI) \
	AND      (SI), MAGNITUDES16, V1 \
	VPMAXUW  V1, TOP, TOP \
	NEAREST_F16(0, 0) \
	NEAREST_F16(2*WIDTH, WIDTH) \
	ADDQ     $(4*WIDTH), SI \
	ADDQ     $(2*WIDTH), DI \
	SUBQ     $(2*WIDTH), CX \
	JNZ      loop \
	FOLD_TOP_WORDS \
	VCVTPH2PS X6, X6 \
	VMULSS   scaleInv+36(FP), X6, X6 \
	VMOVSS   X6, amax+40(FP) \
	VZEROUPPER \
	RET

// FOLD_TOP_WORDS reduces TOP to its largest 16-bit word, in X6.
#define FOLD_TOP_WORDS \
	VPSRLD  $16, TOP, V0 \
	VPSLLD  $16, TOP, TOP \
	VPSRLD  $16, TOP, TOP \
	VPMAXUD V0, TOP, TOP \
	FOLD_TOP

// Each 32-bit lane holds two BF16 elements. Clearing the lower half gives the upper
// element as float32; shifting the lower half up gives the lower element. Signs and the
// amax use 16-bit words. The result is words with a code in each lower byte.
#define QUANTIZE_BF16 \
	BEGIN_SCALED \
	NEAREST_CONSTANTS \
	VPBROADCASTD words<>+0(SB), MAGNITUDES16 \
	VPBROADCASTD words<>+4(SB), SIGNS \
	UPPER_CONSTANT \
	LOW_BYTES_OF_WORDS \
loop: \
	LOAD \
	AND      MAGNITUDES16, SRC, V1 \
	VPMAXUW  V1, TOP, TOP \
	VPSLLD   $16, V1, V0 \
	VMULPS   SCALE, V0, V0 \
	NEAREST(V5) \
	AND      UPPER, V1, V0 \
	VMULPS   SCALE, V0, V0 \
	NEAREST(V2) \
	VPSLLD   $16, V2, V2 \
	UPPER_AND_LOWER \
	VPSRLW   $8, SRC, V3 \
	OR_SIGNS \
	STORE_LOW_BYTES_OF_WORDS \
	ADDQ     $(4*WIDTH), SI \
	ADDQ     $(2*WIDTH), DI \
	SUBQ     $(2*WIDTH), CX \
	JNZ      loop \
	VPSLLD   $16, TOP, V0 \
	AND      UPPER, TOP, TOP \
	VPMAXUD  V0, TOP, TOP \
	FOLD_TOP \
	VMOVSS   X6, amax+40(FP) \
	VZEROUPPER \
	RET

DATA words<>+0(SB)/4, $0x7fff7fff
DATA words<>+4(SB)/4, $0x00800080
DATA words<>+8(SB)/4, $0x80808080
GLOBL words<>(SB), RODATA|NOPTR, $12

// The order of words after the packing of four vectors.
DATA packed<>+0(SB)/8, $0x0000000400000000
DATA packed<>+8(SB)/8, $0x0000000500000001
DATA packed<>+16(SB)/8, $0x0000000600000002
DATA packed<>+24(SB)/8, $0x0000000700000003
GLOBL packed<>(SB), RODATA|NOPTR, $32

// Mask of the magnitude of the upper of two BF16 elements.
DATA upper<>+0(SB)/8, $0x7fff00007fff0000
DATA upper<>+8(SB)/8, $0x7fff00007fff0000
DATA upper<>+16(SB)/8, $0x7fff00007fff0000
DATA upper<>+24(SB)/8, $0x7fff00007fff0000
GLOBL upper<>(SB), RODATA|NOPTR, $32

#define STOCHASTIC8 \
	SCALED(LOAD) \
	STOCHASTIC \
	STORE_TOP_BYTES \
	STEP_ON(4, 1)

#define QUANTIZE8_STOCHASTIC \
	BEGIN_SCALED \
	TOP_BYTES \
	BEGIN_RANDOM(first+36(FP), key+40(FP)) \
loop: \
	TWICE(STOCHASTIC8) \
	SUBQ $(2*WIDTH), CX \
	JNZ  loop \
	FOLD_TOP \
	VMOVSS X6, amax+48(FP) \
	VZEROUPPER \
	RET

#define STOCHASTIC8_F16 \
	SCALED(LOAD_F16) \
	STOCHASTIC \
	STORE_TOP_BYTES \
	STEP_ON(2, 1)

#define QUANTIZE_F16_STOCHASTIC \
	BEGIN_SCALED \
	TOP_BYTES \
	SCALE_INV_FROM(scaleInv+36(FP)) \
	BEGIN_RANDOM(first+40(FP), key+44(FP)) \
loop: \
	TWICE(STOCHASTIC8_F16) \
	SUBQ $(2*WIDTH), CX \
	JNZ  loop \
	FOLD_TOP \
	VMOVSS X6, amax+48(FP) \
	VZEROUPPER \
	RET

// The two BF16 elements of a 32-bit lane take the halves of one random word. ABS here
// masks 16-bit words.
#define QUANTIZE_BF16_STOCHASTIC \
	BEGIN_SCALED \
	TOP_BYTES_OF_WORDS \
	BEGIN_RANDOM_IN(inOrder<>+0(SB), first+36(FP), key+40(FP)) \
	VPBROADCASTD words<>+0(SB), ABS \
	UPPER_CONSTANT \
loop: \
	RANDOM \
	LOAD \
	AND     ABS, SRC, V0 \
	VPMAXUW V0, TOP, TOP \
	VPSLLD  $16, V0, V0 \
	VMULPS  SCALE, V0, V0 \
	PLACED \
	VPSHUFB LOW, V1, V5 \
	VPADDD  V2, V5, V5 \
	VPSRLD  $16, V5, V5 \
	AND     UPPER, SRC, V0 \
	VMULPS  SCALE, V0, V0 \
	PLACED \
	VPSHUFB HIGH, V1, V1 \
	VPADDD  V1, V2, V2 \
	UPPER_AND_LOWER \
	SIGN_ON_TOP \
	STORE_TOP_BYTES_OF_WORDS \
	ADDQ    $(4*WIDTH), SI \
	ADDQ    $(2*WIDTH), DI \
	SUBQ    $(2*WIDTH), CX \
	JNZ     loop \
	FOLD_TOP_WORDS \
	VPSLLD  $16, X6, X6 \
	VMOVSS  X6, amax+48(FP) \
	VZEROUPPER \
	RET

// VCVTPS2PH rounds like castNearest.
#define QUANTIZE16 \
	BEGIN_SCALED \
	NEAREST_CONSTANTS \
loop: \
	MAGNITUDES(LOAD) \
	VMULPS    SCALE, SRC, V0 \
	VMINPS    LIMIT, V0, V2 \
	VMAXPS    LOWEST, V2, V2 \
	VCVTPS2PH $0, V2, (DI) \
	STEP_ON(4, 2) \
	SUBQ      $WIDTH, CX \
	JNZ       loop \
	FOLD_TOP \
	VMOVSS    X6, amax+40(FP) \
	VZEROUPPER \
	RET

#define STOCHASTIC16 \
	SCALED(LOAD) \
	STOCHASTIC \
	STORE_TOP_WORDS_AT(0) \
	STEP_ON(4, 2)

#define QUANTIZE16_STOCHASTIC \
	BEGIN_SCALED \
	TOP_WORDS \
	BEGIN_RANDOM(first+36(FP), key+40(FP)) \
loop: \
	TWICE(STOCHASTIC16) \
	SUBQ $(2*WIDTH), CX \
	JNZ  loop \
	FOLD_TOP \
	VMOVSS X6, amax+48(FP) \
	VZEROUPPER \
	RET

// ROUND_BF16 rounds vector i. Rounding to nearest even adds 0x7fff plus the lowest kept bit. NAN
// is 0x7fff too, so it serves as that constant.
#define ROUND_BF16(i) \
	PREFETCHT0 (2560+4*i*WIDTH)(SI) \
	VMOVUPS (4*i*WIDTH)(SI), SRC \
	VPSRLD $16, SRC, V2 \
	AND    ONE, V2, V2 \
	VPADDD NAN, SRC, V3 \
	VPADDD V3, V2, V2 \
	NAN_FOR_NAN \
	STORE_TOP_WORDS_AT(2*i*WIDTH)

#define ENCODE_BF16 \
	MOVQ dst+0(FP), R9 \
	MOVQ step+8(FP), R10 \
	MOVQ src+16(FP), R11 \
	MOVQ ld+24(FP), R12 \
	MOVQ count+32(FP), R13 \
	MOVQ c+48(FP), R8 \
	SHLQ $1, R10 \
	SHLQ $2, R12 \
	NEAREST_CONSTANTS \
	TOP_WORDS \
row: \
	MOVQ R9, DI \
	MOVQ R11, SI \
	MOVQ n+40(FP), CX \
	ADDQ R10, R9 \
	ADDQ R12, R11 \
	SUBQ $(4*WIDTH), CX \
	JLT  rest \
many: \
	PREFETCHT0 1024(DI) \
	PREFETCHT0 (1024+4*WIDTH)(DI) \
	ROUND_BF16(0) \
	ROUND_BF16(1) \
	ROUND_BF16(2) \
	ROUND_BF16(3) \
	ADDQ $(16*WIDTH), SI \
	ADDQ $(8*WIDTH), DI \
	SUBQ $(4*WIDTH), CX \
	JGE  many \
rest: \
	ADDQ $(4*WIDTH), CX \
	JZ   next \
one: \
	ROUND_BF16(0) \
	STEP_ON(4, 2) \
	SUBQ $WIDTH, CX \
	JNZ  one \
next: \
	DECQ R13 \
	JNZ  row \
	VZEROUPPER \
	RET

#define STOCHASTIC_BF16 \
	LOAD \
	VPADDD SRC, V5, V2 \
	NAN_FOR_NAN \
	STORE_TOP_WORDS_AT(0) \
	STEP_ON(4, 2)

#define ENCODE_BF16_STOCHASTIC \
	BEGIN \
	TOP_WORDS \
	BEGIN_RANDOM(first+32(FP), key+36(FP)) \
loop: \
	TWICE(STOCHASTIC_BF16) \
	SUBQ $(2*WIDTH), CX \
	JNZ  loop \
	VZEROUPPER \
	RET

// Word numbers within a vector, in the order that TWICE needs: for 512 bits, then 256.
DATA ·lanes+0(SB)/8, $0x0000000100000000
DATA ·lanes+8(SB)/8, $0x0000000900000008
DATA ·lanes+16(SB)/8, $0x0000000300000002
DATA ·lanes+24(SB)/8, $0x0000000b0000000a
DATA ·lanes+32(SB)/8, $0x0000000500000004
DATA ·lanes+40(SB)/8, $0x0000000d0000000c
DATA ·lanes+48(SB)/8, $0x0000000700000006
DATA ·lanes+56(SB)/8, $0x0000000f0000000e
DATA ·lanes+64(SB)/8, $0x0000000100000000
DATA ·lanes+72(SB)/8, $0x0000000500000004
DATA ·lanes+80(SB)/8, $0x0000000300000002
DATA ·lanes+88(SB)/8, $0x0000000700000006
GLOBL ·lanes(SB), RODATA|NOPTR, $96

// Word numbers in ascending order.
DATA inOrder<>+0(SB)/8, $0x0000000100000000
DATA inOrder<>+8(SB)/8, $0x0000000300000002
DATA inOrder<>+16(SB)/8, $0x0000000500000004
DATA inOrder<>+24(SB)/8, $0x0000000700000006
GLOBL inOrder<>(SB), RODATA|NOPTR, $32

// VPSHUFB controls that gather, within each 128-bit lane: the low bytes of elements,
// their top bytes, their top words, the low bytes of words, the top bytes of words.
DATA bytes<>+0(SB)/8, $0x808080800c080400
DATA bytes<>+8(SB)/8, $0x8080808080808080
DATA bytes<>+16(SB)/8, $0x808080800f0b0703
DATA bytes<>+24(SB)/8, $0x8080808080808080
DATA bytes<>+32(SB)/8, $0x0f0e0b0a07060302
DATA bytes<>+40(SB)/8, $0x8080808080808080
DATA bytes<>+48(SB)/8, $0x0e0c0a0806040200
DATA bytes<>+56(SB)/8, $0x8080808080808080
DATA bytes<>+64(SB)/8, $0x0f0d0b0907050301
DATA bytes<>+72(SB)/8, $0x8080808080808080
GLOBL bytes<>(SB), RODATA|NOPTR, $80

// VPERMQ indices of the low 64 bits of each 128-bit lane.
DATA firsts<>+0(SB)/8, $0
DATA firsts<>+8(SB)/8, $2
DATA firsts<>+16(SB)/8, $4
DATA firsts<>+24(SB)/8, $6
GLOBL firsts<>(SB), RODATA|NOPTR, $32

// func amaxAVX512(x *float32, n int, c *castVectors) (amax float32)
TEXT ·amaxAVX512(SB), NOSPLIT, $0-28
	AMAX

// func quantize16AVX512(dst *uint16, src *float32, n int, c *castVectors, scale float32) (amax float32)
TEXT ·quantize16AVX512(SB), NOSPLIT, $0-44
	QUANTIZE16

// func quantize16StochasticAVX512(dst *uint16, src *float32, n int, c *stochasticVectors, scale float32, first, key uint32) (amax float32)
TEXT ·quantize16StochasticAVX512(SB), NOSPLIT, $0-52
	QUANTIZE16_STOCHASTIC

// func encodeBF16AVX512(dst *uint16, step int, src *float32, ld, count, n int, c *castVectors)
TEXT ·encodeBF16AVX512(SB), NOSPLIT, $0-56
	ENCODE_BF16

// func encodeBF16StochasticAVX512(dst *uint16, src *float32, n int, c *stochasticVectors, first, key uint32)
TEXT ·encodeBF16StochasticAVX512(SB), NOSPLIT, $0-40
	ENCODE_BF16_STOCHASTIC

#include "ymm_amd64.h"

// func amaxAVX2(x *float32, n int, c *castVectors) (amax float32)
TEXT ·amaxAVX2(SB), NOSPLIT, $0-28
	AMAX

// func quantize8AVX2(dst *uint8, src *float32, n int, c *castVectors, scale float32) (amax float32)
TEXT ·quantize8AVX2(SB), NOSPLIT, $0-44
	QUANTIZE8

// func quantizeBF16AVX2(dst *uint8, src *uint16, n int, c *castVectors, scale float32) (amax float32)
TEXT ·quantizeBF16AVX2(SB), NOSPLIT, $0-44
	QUANTIZE_BF16

// func quantizeF16AVX2(dst *uint8, src *uint16, n int, c *castVectors, scale, scaleInv float32) (amax float32)
TEXT ·quantizeF16AVX2(SB), NOSPLIT, $0-44
	QUANTIZE_F16

// func quantize8StochasticAVX2(dst *uint8, src *float32, n int, c *stochasticVectors, scale float32, first, key uint32) (amax float32)
TEXT ·quantize8StochasticAVX2(SB), NOSPLIT, $0-52
	QUANTIZE8_STOCHASTIC

// func quantizeBF16StochasticAVX2(dst *uint8, src *uint16, n int, c *stochasticVectors, scale float32, first, key uint32) (amax float32)
TEXT ·quantizeBF16StochasticAVX2(SB), NOSPLIT, $0-52
	QUANTIZE_BF16_STOCHASTIC

// func quantizeF16StochasticAVX2(dst *uint8, src *uint16, n int, c *stochasticVectors, scale, scaleInv float32, first, key uint32) (amax float32)
TEXT ·quantizeF16StochasticAVX2(SB), NOSPLIT, $0-52
	QUANTIZE_F16_STOCHASTIC

// func quantize16AVX2(dst *uint16, src *float32, n int, c *castVectors, scale float32) (amax float32)
TEXT ·quantize16AVX2(SB), NOSPLIT, $0-44
	QUANTIZE16

// func quantize16StochasticAVX2(dst *uint16, src *float32, n int, c *stochasticVectors, scale float32, first, key uint32) (amax float32)
TEXT ·quantize16StochasticAVX2(SB), NOSPLIT, $0-52
	QUANTIZE16_STOCHASTIC

// func encodeBF16AVX2(dst *uint16, step int, src *float32, ld, count, n int, c *castVectors)
TEXT ·encodeBF16AVX2(SB), NOSPLIT, $0-56
	ENCODE_BF16

// func encodeBF16StochasticAVX2(dst *uint16, src *float32, n int, c *stochasticVectors, first, key uint32)
TEXT ·encodeBF16StochasticAVX2(SB), NOSPLIT, $0-40
	ENCODE_BF16_STOCHASTIC
