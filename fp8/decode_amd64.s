//go:build !noasm

#include "go_asm.h"
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

// WIDEN_BF16 decodes vector i.
#define WIDEN_BF16(i) \
	VPMOVZXWD (2*i*WIDTH)(SI), V0 \
	VPSLLD    $16, V0, V0 \
	VMOVUPS   V0, (4*i*WIDTH)(DI)

#define DECODE_BF16 \
	BEGIN \
	SUBQ       $(4*WIDTH), CX \
	JLT        rest \
many: \
	PREFETCHT0 4096(SI) \
	PREFETCHT0 (4096+4*WIDTH)(SI) \
	WIDEN_BF16(0) \
	WIDEN_BF16(1) \
	WIDEN_BF16(2) \
	WIDEN_BF16(3) \
	ADDQ       $(8*WIDTH), SI \
	ADDQ       $(16*WIDTH), DI \
	SUBQ       $(4*WIDTH), CX \
	JGE        many \
rest: \
	ADDQ       $(4*WIDTH), CX \
	JZ         done \
one: \
	WIDEN_BF16(0) \
	ADDQ       $(2*WIDTH), SI \
	ADDQ       $(4*WIDTH), DI \
	SUBQ       $WIDTH, CX \
	JNZ        one \
done: \
	VZEROUPPER \
	RET

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

// Of a format with at most four exponent bits, the magnitude of a code, shifted to the
// place of F16's fields, is the F16 code of 2^(bias-15) times the value, for subnormals
// too. Magnitudes above LARGEST get the top exponent of F16 instead. A multiplication by
// a power of two shifts by as many bits as the format needs. That by REBIAS is exact and
// comes first, because REBIAS times the scale can overflow.
#define DEQUANTIZE \
	BEGIN_SCALED \
	MOVQ         c+32(FP), R8 \
	VPBROADCASTW decodeWords_fields(R8), FIELDS \
	VPBROADCASTW decodeWords_toFields(R8), TO_FIELDS \
	VPBROADCASTW decodeWords_toSign(R8), TO_SIGN \
	VPBROADCASTW decodeWords_largest(R8), LARGEST \
	VPBROADCASTW decodeWords_sign(R8), SIGN_BIT \
	VPBROADCASTW decodeWords_top(R8), TOP_EXPONENT \
	VBROADCASTSS decodeWords_rebias(R8), REBIAS \
loop: \
	VPMOVZXBW (SI), H0 \
	VPMULLW   TO_FIELDS, H0, H1 \
	VPMULLW   TO_SIGN, H0, H0 \
	VPAND     FIELDS, H1, H1 \
	VPAND     SIGN_BIT, H0, H0 \
	VPOR      H0, H1, H0 \
	VPCMPGTW  LARGEST, H1, H1 \
	VPAND     TOP_EXPONENT, H1, H1 \
	VPOR      H1, H0, H0 \
	VCVTPH2PS H0, V0 \
	VMULPS    REBIAS, V0, V0 \
	VMULPS    SCALE, V0, V0 \
	END(1)

#define FIELDS       Y8
#define TO_FIELDS    Y9
#define TO_SIGN      Y10
#define LARGEST      Y11
#define SIGN_BIT         Y12
#define TOP_EXPONENT Y13
#define REBIAS       Z14

// func decodeBF16AVX512(dst *float32, src *uint16, n int)
TEXT ·decodeBF16AVX512(SB), NOSPLIT, $0-24
	DECODE_BF16

// func dequantize16AVX512(dst *float32, src *uint16, n int, scaleInv float32)
TEXT ·dequantize16AVX512(SB), NOSPLIT, $0-28
	DEQUANTIZE16

// func dequantizeE5M2AVX512(dst *float32, src *uint8, n int, scaleInv float32)
TEXT ·dequantizeE5M2AVX512(SB), NOSPLIT, $0-28
	DEQUANTIZE_E5M2

// func dequantizeAVX512(dst *float32, src *uint8, n int, scaleInv float32, c *decodeWords)
TEXT ·dequantizeAVX512(SB), NOSPLIT, $0-40
	DEQUANTIZE

#include "ymm_amd64.h"

#undef FIELDS
#undef TO_FIELDS
#undef TO_SIGN
#undef LARGEST
#undef SIGN_BIT
#undef TOP_EXPONENT
#undef REBIAS

#define FIELDS       X8
#define TO_FIELDS    X9
#define TO_SIGN      X10
#define LARGEST      X11
#define SIGN_BIT         X12
#define TOP_EXPONENT X13
#define REBIAS       Y14

// func decodeBF16AVX2(dst *float32, src *uint16, n int)
TEXT ·decodeBF16AVX2(SB), NOSPLIT, $0-24
	DECODE_BF16

// func dequantize16AVX2(dst *float32, src *uint16, n int, scaleInv float32)
TEXT ·dequantize16AVX2(SB), NOSPLIT, $0-28
	DEQUANTIZE16

// func dequantizeE5M2AVX2(dst *float32, src *uint8, n int, scaleInv float32)
TEXT ·dequantizeE5M2AVX2(SB), NOSPLIT, $0-28
	DEQUANTIZE_E5M2

// func dequantizeAVX2(dst *float32, src *uint8, n int, scaleInv float32, c *decodeWords)
TEXT ·dequantizeAVX2(SB), NOSPLIT, $0-40
	DEQUANTIZE
