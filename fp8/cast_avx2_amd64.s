//go:build !noasm

#include "go_asm.h"
#include "textflag.h"

#define WIDTH 8
#define AND   VPAND
#define XOR   VPXOR

#define SRC Y12
#define V0 Y0
#define V1 Y1
#define V2 Y2
#define V3 Y3
#define V4 Y4
#define V5 Y5
#define H0 X0
#define H1 X1

#define TOP      Y6
#define SCALE    Y7
#define INDEX    Y8
#define KEY0     Y9
#define KEY1     Y10
#define FRACTION Y11
#define ABS      Y13
#define HALVES   Y14
#define SHUFFLE  Y15

// The other constants are read where they are used.
#define INF      castVectors_inf(R8)
#define LIMIT    castVectors_limit(R8)
#define LOWEST   castVectors_lowest(R8)
#define SMALLEST castVectors_smallest(R8)
#define MAGIC    castVectors_magic(R8)
#define DROP     castVectors_drop(R8)
#define SIGN     castVectors_sign(R8)
#define NAN      castVectors_nan(R8)
#define ONE      castVectors_one(R8)
#define ONES     castVectors_ones(R8)
#define STEP     castVectors_step(R8)
#define MIX1     castVectors_mix1(R8)
#define MIX2     castVectors_mix2(R8)

#define LARGEST      X8
#define MAGNITUDE    X9
#define FIELDS       X10
#define TOP_EXPONENT X11
#define REBIAS       Y12

#include "cast_amd64.h"


#define CONSTANTS \
	VPXOR   TOP, TOP, TOP \
	VMOVDQU castVectors_abs(R8), ABS \
	VMOVDQU castVectors_fraction(R8), FRACTION

#define E4M3_CONSTANTS \
	VPBROADCASTW e4m3Words<>+0(SB), MAGNITUDE \
	VPBROADCASTW e4m3Words<>+2(SB), FIELDS \
	VPBROADCASTW e4m3Words<>+4(SB), TOP_EXPONENT \
	VPBROADCASTD e4m3Words<>+8(SB), REBIAS

DATA e4m3Words<>+0(SB)/2, $0x3f80
DATA e4m3Words<>+2(SB)/2, $0xbf80
DATA e4m3Words<>+4(SB)/2, $0x4000
DATA e4m3Words<>+8(SB)/4, $0x43800000 // 2^8
GLOBL e4m3Words<>(SB), RODATA|NOPTR, $12

#define XOR3(a, b, c) \
	VPXOR a, c, c \
	VPXOR b, c, c

#define XNOR(a, b) \
	VPXOR a, b, b \
	VPXOR ONES, b, b

// CUT adds V4 to V2, to nearest: the fraction that it leaves is negative where
// that was up, and CARRY takes one from the code.
#define CUT VADDPS V4, V2, V5

// CARRY adds to the codes V2 the carry of the fractions V4 and the random
// bits, whose complement is V1. 2^31 comes out of the conversion as the same
// bits as -2^31, as it should.
#define CARRY \
	VPSRAD     $31, V4, V3 \
	VPADDD     V3, V2, V2 \
	VCVTTPS2DQ V4, V4 \
	VPMAXUD    V1, V4, V4 \
	VPCMPEQD   V1, V4, V4 \
	VPADDD     V4, V2, V2 \
	VPADDD     ONE, V2, V2

#define SIGN_FROM(shift) \
	VPSRLD $shift, SRC, V3 \
	VPAND  SIGN, V3, V3 \
	VPOR   V3, V2, V2

#define NAN_FOR_NAN \
	VCMPPS    $3, SRC, SRC, V3 \
	VBLENDVPS V3, NAN, V2, V2

// The low bytes or words of each half, side by side.
DATA lowBytes<>+0(SB)/8, $0x808080800c080400
DATA lowBytes<>+8(SB)/8, $0x8080808080808080
GLOBL lowBytes<>(SB), RODATA|NOPTR, $16
DATA lowWords<>+0(SB)/8, $0x0d0c090805040100
DATA lowWords<>+8(SB)/8, $0x8080808080808080
GLOBL lowWords<>(SB), RODATA|NOPTR, $16

#define STORE8 \
	VPSHUFB      SHUFFLE, V2, V2 \
	VEXTRACTI128 $1, Y2, X3 \
	VPUNPCKLDQ   X3, X2, X2 \
	VMOVQ        X2, (DI)

#define STORE16 \
	VPSHUFB      SHUFFLE, V2, V2 \
	VEXTRACTI128 $1, Y2, X3 \
	VPUNPCKLQDQ  X3, X2, X2 \
	VMOVDQU      X2, (DI)

#define FOLD_TOP \
	VEXTRACTI128 $1, Y6, X0 \
	VPMAXUD      X0, X6, X6 \
	VPSHUFD      $0x4e, X6, X0 \
	VPMAXUD      X0, X6, X6 \
	VPSHUFD      $0xb1, X6, X0 \
	VPMAXUD      X0, X6, X6

DATA lanes<>+0(SB)/4, $0
DATA lanes<>+4(SB)/4, $1
DATA lanes<>+8(SB)/4, $2
DATA lanes<>+12(SB)/4, $3
DATA lanes<>+16(SB)/4, $4
DATA lanes<>+20(SB)/4, $5
DATA lanes<>+24(SB)/4, $6
DATA lanes<>+28(SB)/4, $7
GLOBL lanes<>(SB), RODATA|NOPTR, $32

// func amaxAVX2(x *float32, n int, c *castVectors) (amax float32)
TEXT ·amaxAVX2(SB), NOSPLIT, $0-28
	MOVQ x+0(FP), SI
	MOVQ n+8(FP), CX
	MOVQ c+16(FP), R8
	CONSTANTS

	AMAX_LOOP
	FOLD_TOP
	VMOVSS X6, amax+24(FP)
	VZEROUPPER
	RET

// func quantize8AVX2(dst *uint8, src *float32, n int, c *castVectors, scale float32) (amax float32)
TEXT ·quantize8AVX2(SB), NOSPLIT, $0-44
	MOVQ dst+0(FP), DI
	MOVQ src+8(FP), SI
	MOVQ n+16(FP), CX
	MOVQ c+24(FP), R8
	VBROADCASTSS scale+32(FP), SCALE
	CONSTANTS
	VBROADCASTI128 lowBytes<>(SB), SHUFFLE

	QUANTIZE8_LOOP
	FOLD_TOP
	VMOVSS X6, amax+40(FP)
	VZEROUPPER
	RET

// func quantize8StochasticAVX2(dst *uint8, src *float32, n int, c *castVectors, scale float32, key0, key1, index uint32) (amax float32)
TEXT ·quantize8StochasticAVX2(SB), NOSPLIT, $0-52
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
	VBROADCASTI128 lowBytes<>(SB), SHUFFLE

	QUANTIZE8_STOCHASTIC_LOOP
	FOLD_TOP
	VMOVSS X6, amax+48(FP)
	VZEROUPPER
	RET

// func quantize16AVX2(dst *uint16, src *float32, n int, c *castVectors, scale float32) (amax float32)
TEXT ·quantize16AVX2(SB), NOSPLIT, $0-44
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

// func quantize16StochasticAVX2(dst *uint16, src *float32, n int, c *castVectors, scale float32, key0, key1, index uint32) (amax float32)
TEXT ·quantize16StochasticAVX2(SB), NOSPLIT, $0-52
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
	VBROADCASTI128 lowWords<>(SB), SHUFFLE

	QUANTIZE16_STOCHASTIC_LOOP
	FOLD_TOP
	VMOVSS X6, amax+48(FP)
	VZEROUPPER
	RET

// func encodeBF16AVX2(dst *uint16, src *float32, n int, c *castVectors)
TEXT ·encodeBF16AVX2(SB), NOSPLIT, $0-32
	MOVQ dst+0(FP), DI
	MOVQ src+8(FP), SI
	MOVQ n+16(FP), CX
	MOVQ c+24(FP), R8
	CONSTANTS
	VBROADCASTI128 lowWords<>(SB), SHUFFLE

	ENCODE_BF16_LOOP
	VZEROUPPER
	RET

// func encodeBF16StochasticAVX2(dst *uint16, src *float32, n int, c *castVectors, key0, key1, index uint32)
TEXT ·encodeBF16StochasticAVX2(SB), NOSPLIT, $0-44
	MOVQ dst+0(FP), DI
	MOVQ src+8(FP), SI
	MOVQ n+16(FP), CX
	MOVQ c+24(FP), R8
	VBROADCASTSS key0+32(FP), KEY0
	VBROADCASTSS key1+36(FP), KEY1
	VBROADCASTSS index+40(FP), INDEX
	VPADDD lanes<>(SB), INDEX, INDEX
	CONSTANTS
	VBROADCASTI128 lowWords<>(SB), SHUFFLE

	ENCODE_BF16_STOCHASTIC_LOOP
	VZEROUPPER
	RET

// func decodeBF16AVX2(dst *float32, src *uint16, n int)
TEXT ·decodeBF16AVX2(SB), NOSPLIT, $0-24
	MOVQ dst+0(FP), DI
	MOVQ src+8(FP), SI
	MOVQ n+16(FP), CX

	DECODE_BF16_LOOP
	VZEROUPPER
	RET

// func dequantizeE4M3AVX2(dst *float32, src *uint8, n int, scaleInv float32, largest uint32)
TEXT ·dequantizeE4M3AVX2(SB), NOSPLIT, $0-32
	MOVQ dst+0(FP), DI
	MOVQ src+8(FP), SI
	MOVQ n+16(FP), CX
	VBROADCASTSS scaleInv+24(FP), SCALE
	VBROADCASTSS largest+28(FP), LARGEST
	E4M3_CONSTANTS

	DEQUANTIZE_E4M3_LOOP
	VZEROUPPER
	RET

// func dequantizeE5M2AVX2(dst *float32, src *uint8, n int, scaleInv float32)
TEXT ·dequantizeE5M2AVX2(SB), NOSPLIT, $0-28
	MOVQ dst+0(FP), DI
	MOVQ src+8(FP), SI
	MOVQ n+16(FP), CX
	VBROADCASTSS scaleInv+24(FP), SCALE

	DEQUANTIZE_E5M2_LOOP
	VZEROUPPER
	RET

// func dequantize16AVX2(dst *float32, src *uint16, n int, scaleInv float32)
TEXT ·dequantize16AVX2(SB), NOSPLIT, $0-28
	MOVQ dst+0(FP), DI
	MOVQ src+8(FP), SI
	MOVQ n+16(FP), CX
	VBROADCASTSS scaleInv+24(FP), SCALE

	DEQUANTIZE16_LOOP
	VZEROUPPER
	RET
