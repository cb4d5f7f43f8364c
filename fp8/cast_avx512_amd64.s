//go:build !noasm

#include "go_asm.h"
#include "textflag.h"

#define WIDTH 16
#define AND   VPANDD
#define XOR   VPXORD

#define SRC Z15
#define V0 Z0
#define V1 Z1
#define V2 Z2
#define V3 Z3
#define V4 Z4
#define V5 Z5
#define H0 Y0
#define H1 Y1

#define TOP      Z6
#define SCALE    Z7
#define INDEX    Z8
#define KEY0     Z9
#define KEY1     Z10
#define HALVES   Z14
#define FRACTION Z11
#define LIMIT    Z12
#define LOWEST   Z13
#define ABS      Z16
#define INF      Z17
#define SMALLEST Z18
#define MAGIC    Z19
#define DROP     Z20
#define SIGN     Z21
#define NAN      Z22
#define ONE      Z23
#define STEP     Z24
#define MIX1     Z25
#define MIX2     Z26

#define LARGEST      Y8
#define MAGNITUDE    Y9
#define FIELDS       Y10
#define TOP_EXPONENT Y11
#define REBIAS       Z12

#include "cast_amd64.h"

#define CONSTANTS \
	VPXORD       TOP, TOP, TOP \
	VPBROADCASTD castVectors_abs(R8), ABS \
	MOVL         $WIDTH, AX \
	VPBROADCASTD AX, STEP \
	VPBROADCASTD castVectors_inf(R8), INF \
	VPBROADCASTD castVectors_one(R8), ONE \
	VPBROADCASTD castVectors_mix1(R8), MIX1 \
	VPBROADCASTD castVectors_mix2(R8), MIX2 \
	VPBROADCASTD castVectors_limit(R8), LIMIT \
	VPBROADCASTD castVectors_lowest(R8), LOWEST \
	VPBROADCASTD castVectors_smallest(R8), SMALLEST \
	VPBROADCASTD castVectors_drop(R8), DROP \
	VPBROADCASTD castVectors_nan(R8), NAN \
	VPBROADCASTD castVectors_sign(R8), SIGN \
	VPBROADCASTD castVectors_magic(R8), MAGIC \
	VPBROADCASTD castVectors_fraction(R8), FRACTION

#define E4M3_CONSTANTS \
	MOVL         $0x3f80, AX \
	VPBROADCASTW AX, MAGNITUDE \
	MOVL         $0xbf80, AX \
	VPBROADCASTW AX, FIELDS \
	MOVL         $0x4000, AX \
	VPBROADCASTW AX, TOP_EXPONENT \
	MOVL         $0x43800000, AX \
	VPBROADCASTD AX, REBIAS

#define XOR3(a, b, c) VPTERNLOGD $0x96, a, b, c
#define XNOR(a, b)    VPTERNLOGD $0xa5, a, b, b

// CUT adds V4 to V2, rounding toward zero.
#define CUT VADDPS.RZ_SAE V4, V2, V5

// CARRY adds to the codes V2 the carry of the fractions V4 and the random
// bits, whose complement is V1.
#define CARRY \
	VCVTTPS2UDQ V4, V4 \
	VPCMPUD     $6, V1, V4, K1 \
	VPADDD      ONE, V2, K1, V2

#define SIGN_FROM(shift) \
	VPSRLD     $shift, SRC, V3 \
	VPTERNLOGD $0xf8, SIGN, V3, V2

#define NAN_FOR_NAN \
	VCMPPS    $3, SRC, SRC, K1 \
	VMOVDQA32 NAN, K1, V2

#define STORE8  VPMOVDB V2, (DI)
#define STORE16 VPMOVDW V2, (DI)

#define FOLD_TOP \
	VEXTRACTI64X4 $1, Z6, Y0 \
	VPMAXUD       Y0, Y6, Y6 \
	VEXTRACTI128  $1, Y6, X0 \
	VPMAXUD       X0, X6, X6 \
	VPSHUFD       $0x4e, X6, X0 \
	VPMAXUD       X0, X6, X6 \
	VPSHUFD       $0xb1, X6, X0 \
	VPMAXUD       X0, X6, X6

DATA lanes<>+0(SB)/4, $0
DATA lanes<>+4(SB)/4, $1
DATA lanes<>+8(SB)/4, $2
DATA lanes<>+12(SB)/4, $3
DATA lanes<>+16(SB)/4, $4
DATA lanes<>+20(SB)/4, $5
DATA lanes<>+24(SB)/4, $6
DATA lanes<>+28(SB)/4, $7
DATA lanes<>+32(SB)/4, $8
DATA lanes<>+36(SB)/4, $9
DATA lanes<>+40(SB)/4, $10
DATA lanes<>+44(SB)/4, $11
DATA lanes<>+48(SB)/4, $12
DATA lanes<>+52(SB)/4, $13
DATA lanes<>+56(SB)/4, $14
DATA lanes<>+60(SB)/4, $15
GLOBL lanes<>(SB), RODATA|NOPTR, $64

// func amaxAVX512(x *float32, n int, c *castVectors) (amax float32)
TEXT ·amaxAVX512(SB), NOSPLIT, $0-28
	MOVQ x+0(FP), SI
	MOVQ n+8(FP), CX
	MOVQ c+16(FP), R8
	VPBROADCASTD castVectors_abs(R8), ABS
	VPXORD TOP, TOP, TOP

	AMAX_LOOP
	FOLD_TOP
	VMOVSS X6, amax+24(FP)
	VZEROUPPER
	RET

// func quantize8AVX512(dst *uint8, src *float32, n int, c *castVectors, scale float32) (amax float32)
TEXT ·quantize8AVX512(SB), NOSPLIT, $0-44
	MOVQ dst+0(FP), DI
	MOVQ src+8(FP), SI
	MOVQ n+16(FP), CX
	MOVQ c+24(FP), R8
	VBROADCASTSS scale+32(FP), SCALE
	CONSTANTS

	QUANTIZE8_LOOP
	FOLD_TOP
	VMOVSS X6, amax+40(FP)
	VZEROUPPER
	RET

// func quantize8StochasticAVX512(dst *uint8, src *float32, n int, c *castVectors, scale float32, key0, key1, index uint32) (amax float32)
TEXT ·quantize8StochasticAVX512(SB), NOSPLIT, $0-52
	MOVQ dst+0(FP), DI
	MOVQ src+8(FP), SI
	MOVQ n+16(FP), CX
	MOVQ c+24(FP), R8
	VBROADCASTSS scale+32(FP), SCALE
	VBROADCASTSS key0+36(FP), KEY0
	VBROADCASTSS key1+40(FP), KEY1
	VBROADCASTSS index+44(FP), INDEX
	VPADDD lanes<>(SB), INDEX, INDEX
	CONSTANTS

	QUANTIZE8_STOCHASTIC_LOOP
	FOLD_TOP
	VMOVSS X6, amax+48(FP)
	VZEROUPPER
	RET

// func quantize16AVX512(dst *uint16, src *float32, n int, c *castVectors, scale float32) (amax float32)
TEXT ·quantize16AVX512(SB), NOSPLIT, $0-44
	MOVQ dst+0(FP), DI
	MOVQ src+8(FP), SI
	MOVQ n+16(FP), CX
	MOVQ c+24(FP), R8
	VBROADCASTSS scale+32(FP), SCALE
	CONSTANTS

	QUANTIZE16_LOOP
	FOLD_TOP
	VMOVSS X6, amax+40(FP)
	VZEROUPPER
	RET

// func quantize16StochasticAVX512(dst *uint16, src *float32, n int, c *castVectors, scale float32, key0, key1, index uint32) (amax float32)
TEXT ·quantize16StochasticAVX512(SB), NOSPLIT, $0-52
	MOVQ dst+0(FP), DI
	MOVQ src+8(FP), SI
	MOVQ n+16(FP), CX
	MOVQ c+24(FP), R8
	VBROADCASTSS scale+32(FP), SCALE
	VBROADCASTSS key0+36(FP), KEY0
	VBROADCASTSS key1+40(FP), KEY1
	VBROADCASTSS index+44(FP), INDEX
	VPADDD lanes<>(SB), INDEX, INDEX
	CONSTANTS

	QUANTIZE16_STOCHASTIC_LOOP
	FOLD_TOP
	VMOVSS X6, amax+48(FP)
	VZEROUPPER
	RET

// func encodeBF16AVX512(dst *uint16, src *float32, n int, c *castVectors)
TEXT ·encodeBF16AVX512(SB), NOSPLIT, $0-32
	MOVQ dst+0(FP), DI
	MOVQ src+8(FP), SI
	MOVQ n+16(FP), CX
	MOVQ c+24(FP), R8
	CONSTANTS

	ENCODE_BF16_LOOP
	VZEROUPPER
	RET

// func encodeBF16StochasticAVX512(dst *uint16, src *float32, n int, c *castVectors, key0, key1, index uint32)
TEXT ·encodeBF16StochasticAVX512(SB), NOSPLIT, $0-44
	MOVQ dst+0(FP), DI
	MOVQ src+8(FP), SI
	MOVQ n+16(FP), CX
	MOVQ c+24(FP), R8
	VBROADCASTSS key0+32(FP), KEY0
	VBROADCASTSS key1+36(FP), KEY1
	VBROADCASTSS index+40(FP), INDEX
	VPADDD lanes<>(SB), INDEX, INDEX
	CONSTANTS

	ENCODE_BF16_STOCHASTIC_LOOP
	VZEROUPPER
	RET

// func decodeBF16AVX512(dst *float32, src *uint16, n int)
TEXT ·decodeBF16AVX512(SB), NOSPLIT, $0-24
	MOVQ dst+0(FP), DI
	MOVQ src+8(FP), SI
	MOVQ n+16(FP), CX

	DECODE_BF16_LOOP
	VZEROUPPER
	RET

// func dequantizeE4M3AVX512(dst *float32, src *uint8, n int, scaleInv float32, largest uint32)
TEXT ·dequantizeE4M3AVX512(SB), NOSPLIT, $0-32
	MOVQ dst+0(FP), DI
	MOVQ src+8(FP), SI
	MOVQ n+16(FP), CX
	VBROADCASTSS scaleInv+24(FP), SCALE
	VBROADCASTSS largest+28(FP), LARGEST
	E4M3_CONSTANTS

	DEQUANTIZE_E4M3_LOOP
	VZEROUPPER
	RET

// func dequantizeE5M2AVX512(dst *float32, src *uint8, n int, scaleInv float32)
TEXT ·dequantizeE5M2AVX512(SB), NOSPLIT, $0-28
	MOVQ dst+0(FP), DI
	MOVQ src+8(FP), SI
	MOVQ n+16(FP), CX
	VBROADCASTSS scaleInv+24(FP), SCALE

	DEQUANTIZE_E5M2_LOOP
	VZEROUPPER
	RET

// func dequantize16AVX512(dst *float32, src *uint16, n int, scaleInv float32)
TEXT ·dequantize16AVX512(SB), NOSPLIT, $0-28
	MOVQ dst+0(FP), DI
	MOVQ src+8(FP), SI
	MOVQ n+16(FP), CX
	VBROADCASTSS scaleInv+24(FP), SCALE

	DEQUANTIZE16_LOOP
	VZEROUPPER
	RET
