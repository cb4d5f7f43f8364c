//go:build !noasm

#include "textflag.h"
#include "zmm_amd64.h"

// Casts to float32. DI, SI and CX are dst, src and the number of elements left. The
// prefetches fetch the next piece of a caller that alternates between decoding a piece
// and working on it, because the hardware prefetcher loses the stream in between.

#define BEGIN \
	MOVQ dst+0(FP), DI \
	MOVQ src+8(FP), SI \
	MOVQ n+16(FP), CX

#define BEGIN_SCALED \
	BEGIN \
	VBROADCASTSS scaleInv+24(FP), SCALE

// END stores V0 and starts the next iteration. from is the bytes per source element.
#define END(from) \
	VMOVUPS V0, (DI) \
	ADDQ    $(from*WIDTH), SI \
	ADDQ    $(4*WIDTH), DI \
	SUBQ    $WIDTH, CX \
	JNZ     loop \
	VZEROUPPER \
	RET

#define DECODE_BF16 \
	BEGIN \
loop: \
	PREFETCHT0 4096(SI) \
	VPMOVZXWD  (SI), V0 \
	VPSLLD     $16, V0, V0 \
	END(2)

#define DEQUANTIZE16 \
	BEGIN_SCALED \
loop: \
	PREFETCHT0 4096(SI) \
	VCVTPH2PS  (SI), V0 \
	VMULPS     SCALE, V0, V0 \
	END(2)

// An E5M2 code is the upper byte of the F16 code of the same value.
#define DEQUANTIZE_E5M2 \
	BEGIN_SCALED \
loop: \
	VPMOVZXBW (SI), H0 \
	VPSLLW    $8, H0, H0 \
	VCVTPH2PS H0, V0 \
	VMULPS    SCALE, V0, V0 \
	END(1)

// An E4M3 code, its fields shifted to their place in F16, is the F16 code of 2^-8 times
// the value, for subnormals too, because the exponent biases are 7 and 15. Magnitudes
// above LARGEST get the top exponent of F16 instead. The multiplication by 2^8 is
// exact and comes first, because 2^8 times the scale can overflow.
#define DEQUANTIZE_E4M3 \
	BEGIN_SCALED \
	VPBROADCASTD largest+28(FP), LARGEST \
	VPBROADCASTW e4m3Words<>+0(SB), MAGNITUDE \
	VPBROADCASTW e4m3Words<>+2(SB), FIELDS \
	VPBROADCASTW e4m3Words<>+4(SB), TOP_EXPONENT \
	VPBROADCASTD e4m3Words<>+8(SB), REBIAS \
loop: \
	VPMOVSXBW (SI), H0 \
	VPSLLW    $7, H0, H0 \
	VPAND     MAGNITUDE, H0, H1 \
	VPCMPGTW  LARGEST, H1, H1 \
	VPAND     FIELDS, H0, H0 \
	VPAND     TOP_EXPONENT, H1, H1 \
	VPOR      H1, H0, H0 \
	VCVTPH2PS H0, V0 \
	VMULPS    REBIAS, V0, V0 \
	VMULPS    SCALE, V0, V0 \
	END(1)

DATA e4m3Words<>+0(SB)/2, $0x3f80
DATA e4m3Words<>+2(SB)/2, $0xbf80
DATA e4m3Words<>+4(SB)/2, $0x4000
DATA e4m3Words<>+8(SB)/4, $0x43800000 // 2^8
GLOBL e4m3Words<>(SB), RODATA|NOPTR, $12

#define LARGEST      Y8
#define MAGNITUDE    Y9
#define FIELDS       Y10
#define TOP_EXPONENT Y11
#define REBIAS       Z12

// func decodeBF16AVX512(dst *float32, src *uint16, n int)
TEXT ·decodeBF16AVX512(SB), NOSPLIT, $0-24
	DECODE_BF16

// func dequantize16AVX512(dst *float32, src *uint16, n int, scaleInv float32)
TEXT ·dequantize16AVX512(SB), NOSPLIT, $0-28
	DEQUANTIZE16

// func dequantizeE5M2AVX512(dst *float32, src *uint8, n int, scaleInv float32)
TEXT ·dequantizeE5M2AVX512(SB), NOSPLIT, $0-28
	DEQUANTIZE_E5M2

// func dequantizeE4M3AVX512(dst *float32, src *uint8, n int, scaleInv float32, largest uint32)
TEXT ·dequantizeE4M3AVX512(SB), NOSPLIT, $0-32
	DEQUANTIZE_E4M3

#include "ymm_amd64.h"

#undef LARGEST
#undef MAGNITUDE
#undef FIELDS
#undef TOP_EXPONENT
#undef REBIAS

#define LARGEST      X8
#define MAGNITUDE    X9
#define FIELDS       X10
#define TOP_EXPONENT X11
#define REBIAS       Y12

// func decodeBF16AVX2(dst *float32, src *uint16, n int)
TEXT ·decodeBF16AVX2(SB), NOSPLIT, $0-24
	DECODE_BF16

// func dequantize16AVX2(dst *float32, src *uint16, n int, scaleInv float32)
TEXT ·dequantize16AVX2(SB), NOSPLIT, $0-28
	DEQUANTIZE16

// func dequantizeE5M2AVX2(dst *float32, src *uint8, n int, scaleInv float32)
TEXT ·dequantizeE5M2AVX2(SB), NOSPLIT, $0-28
	DEQUANTIZE_E5M2

// func dequantizeE4M3AVX2(dst *float32, src *uint8, n int, scaleInv float32, largest uint32)
TEXT ·dequantizeE4M3AVX2(SB), NOSPLIT, $0-32
	DEQUANTIZE_E4M3
