//go:build !noasm

#include "go_asm.h"
#include "neon_arm64.h"
#include "textflag.h"

// Casts to narrower formats, 16 elements at a time. R0, R1 and R2 are dst, src
// and the elements left. V0 is a vector of elements, V1 its random bits; its
// codes go to the low ends of one of V8-V11 and its signs to the high ends of
// one of V12-V15, where the signs of NaN are off. V2-V6 are free.

#define FOUR V7
#define ABS V16
#define INF V17
#define TOP V18
#define LIMIT V20
#define SMALLEST V21
#define NAN V22
#define MAGIC V24    // of NEAREST
#define BIAS V24     // of STOCHASTIC
#define SIGN16 V25   // of NEAREST, for codes of 16 bits
#define IMPLICIT V25 // of STOCHASTIC
#define INDEX V26
#define KEY0 V27
#define KEY1 V28
#define WORD_BITS V31

// By their numbers, V19 and so on, as the macros of neon_arm64.h want them.
#define SCALE 19
#define RIGHT 23
#define MIX1 29
#define MIX2 30

#define CAST_SETUP \
	MOVD    dst+0(FP), R0 \
	MOVD    src+8(FP), R1 \
	MOVD    n+16(FP), R2 \
	MOVD    $0x7fffffff, R5 \
	VDUP    R5, ABS.S4 \
	MOVD    $0x7f800000, R5 \
	VDUP    R5, INF.S4

#define QUANTIZE_SETUP \
	CAST_SETUP \
	VEOR    TOP.B16, TOP.B16, TOP.B16 \
	MOVD    c+24(FP), R3 \
	MOVWU   scale+32(FP), R5 \
	VDUP    R5, V19.S4 \
	MOVWU   castLanes_limit(R3), R5 \
	VDUP    R5, LIMIT.S4 \
	MOVWU   castLanes_smallest(R3), R5 \
	VDUP    R5, SMALLEST.S4 \
	MOVWU   castLanes_nan(R3), R5 \
	VDUP    R5, NAN.S4 \
	MOVWU   castLanes_right(R3), R5 \
	VDUP    R5, V23.S4 \
	MOVWU   castLanes_magic(R3), R5 \
	VDUP    R5, MAGIC.S4

#define STOCHASTIC_SETUP \
	MOVWU castLanes_bias(R3), R5 \
	VDUP  R5, BIAS.S4 \
	MOVD  $0x00800000, R5 \
	VDUP  R5, IMPLICIT.S4 \
	MOVD  $32, R5 \
	VDUP  R5, WORD_BITS.S4

// The state of Random, which r points to. KEY1 is for now what makes the index
// count.
#define RANDOM_SETUP(r) \
	MOVWU randomLanes_index(r), R5 \
	VDUP  R5, INDEX.S4 \
	MOVD  $1, R5 \
	VMOV  R5, KEY1.S[1] \
	MOVD  $2, R5 \
	VMOV  R5, KEY1.S[2] \
	MOVD  $3, R5 \
	VMOV  R5, KEY1.S[3] \
	VMOV  ZR, KEY1.S[0] \
	VADD  KEY1.S4, INDEX.S4, INDEX.S4 \
	MOVWU randomLanes_key0(r), R5 \
	VDUP  R5, KEY0.S4 \
	MOVWU randomLanes_key1(r), R5 \
	VDUP  R5, KEY1.S4 \
	MOVD  $0x21f0aaad, R5 \
	VDUP  R5, V29.S4 \
	MOVD  $0xd35a2d97, R5 \
	VDUP  R5, V30.S4 \
	MOVD  $4, R5 \
	VDUP  R5, FOUR.S4

// mix32 of V1
#define MIX \
	VUSHR $16, V1.S4, V2.S4 \
	VEOR  V2.B16, V1.B16, V1.B16 \
	VMUL(MIX1, 1, 1) \
	VUSHR $15, V1.S4, V2.S4 \
	VEOR  V2.B16, V1.B16, V1.B16 \
	VMUL(MIX2, 1, 1) \
	VUSHR $15, V1.S4, V2.S4 \
	VEOR  V2.B16, V1.B16, V1.B16

// Random of the key and the index, in V1, which steps on.
#define RANDOM \
	VEOR INDEX.B16, KEY0.B16, V1.B16 \
	VADD FOUR.S4, INDEX.S4, INDEX.S4 \
	MIX \
	VEOR KEY1.B16, V1.B16, V1.B16 \
	MIX

// V0 is the next four elements, scaled, V3 their magnitudes, V4 all ones
// where they are numbers. The magnitudes before the scale are folded into TOP.
#define SCALED \
	VLD1.P 16(R1), [V0.S4] \
	VAND   ABS.B16, V0.B16, V2.B16 \
	VUMAX  V2.S4, TOP.S4, TOP.S4 \
	VFMUL(SCALE, 0, 0) \
	NUMBERS

#define NUMBERS \
	VAND  ABS.B16, V0.B16, V3.B16 \
	VUMIN INF.S4, V3.S4, V4.S4 \
	VCMEQ V4.S4, V3.S4, V4.S4

#define NAN_AND_SIGN(code, sign) \
	VBIF V4.B16, NAN.B16, code.B16 \
	VAND V4.B16, V0.B16, sign.B16

// castNearest; the two subtractions in it that change the low bits are in
// MAGIC.
#define NEAREST(code, sign) \
	SCALED \
	VUMIN LIMIT.S4, V3.S4, V3.S4 \
	VAND  INF.B16, V3.B16, V2.B16 \
	VUMAX SMALLEST.S4, V2.S4, V2.S4 \
	VADD  MAGIC.S4, V2.S4, V5.S4 \
	VFADD(5, 3, 3) \
	VUSHL(RIGHT, 2, 2) \
	VADD  V2.S4, V3.S4, code.S4 \
	NAN_AND_SIGN(code, sign)

// castStochastic: V6 and V3 become the words of its fixed, V5 the shifts. A
// shift of 32 or more leaves nothing, even where its low eight bits, which are
// all that count, have the wrong sign.
#define STOCHASTIC(code, sign) \
	RANDOM \
	SCALED \
	VUMIN LIMIT.S4, V3.S4, V3.S4 \
	VAND  INF.B16, V3.B16, V5.B16 \
	VBIT  INF.B16, IMPLICIT.B16, V3.B16 \
	VUMAX SMALLEST.S4, V5.S4, V2.S4 \
	VSUB  V5.S4, V2.S4, V5.S4 \
	VUSHR $23, V5.S4, V5.S4 \
	VSUB  V5.S4, V23.S4, V5.S4 \
	VUSHL(5, 3, 6) \
	VADD  WORD_BITS.S4, V5.S4, V5.S4 \
	VUSHL(5, 3, 3) \
	VADD  V3.S4, V1.S4, V1.S4 \
	VCMHI(1, 3, 3) \
	VUSHL(RIGHT, 2, 2) \
	VSUB  BIAS.S4, V2.S4, V2.S4 \
	VADD  V2.S4, V6.S4, V6.S4 \
	VSUB  V3.S4, V6.S4, code.S4 \
	NAN_AND_SIGN(code, sign)

#define STORE8 \
	VUZP1  V9.H8, V8.H8, V8.H8 \
	VUZP1  V11.H8, V10.H8, V10.H8 \
	VUZP1  V10.B16, V8.B16, V8.B16 \
	VUZP2  V13.H8, V12.H8, V12.H8 \
	VUZP2  V15.H8, V14.H8, V14.H8 \
	VUZP2  V14.B16, V12.B16, V12.B16 \
	VMOVI  $0x80, V6.B16 \
	VBIT   V6.B16, V12.B16, V8.B16 \
	VST1.P [V8.B16], 16(R0)

#define STORE16(sign) \
	VUZP1  V9.H8, V8.H8, V8.H8 \
	VUZP1  V11.H8, V10.H8, V9.H8 \
	VUZP2  V13.H8, V12.H8, V12.H8 \
	VUZP2  V15.H8, V14.H8, V13.H8 \
	VBIT   sign.B16, V12.B16, V8.B16 \
	VBIT   sign.B16, V13.B16, V9.B16 \
	VST1.P [V8.H8, V9.H8], 32(R0)

// The largest lane of TOP is the result.
#define RETURN_TOP(at) \
	VEXT  $8, TOP.B16, TOP.B16, V0.B16 \
	VUMAX V0.S4, TOP.S4, TOP.S4 \
	VEXT  $4, TOP.B16, TOP.B16, V0.B16 \
	VUMAX V0.S4, TOP.S4, TOP.S4 \
	FMOVS F18, amax+at(FP) \
	RET

// func amaxNEON(x *float32, n int) (amax float32)
TEXT ·amaxNEON(SB), NOSPLIT, $0-20
	MOVD x+0(FP), R1
	MOVD n+8(FP), R2
	MOVD $0x7fffffff, R5
	VDUP R5, ABS.S4
	VEOR TOP.B16, TOP.B16, TOP.B16
	VEOR V4.B16, V4.B16, V4.B16
	VEOR V5.B16, V5.B16, V5.B16
	VEOR V6.B16, V6.B16, V6.B16

loop:
	VLD1.P 64(R1), [V0.S4, V1.S4, V2.S4, V3.S4]
	VAND   ABS.B16, V0.B16, V0.B16
	VAND   ABS.B16, V1.B16, V1.B16
	VAND   ABS.B16, V2.B16, V2.B16
	VAND   ABS.B16, V3.B16, V3.B16
	VUMAX  V0.S4, TOP.S4, TOP.S4
	VUMAX  V1.S4, V4.S4, V4.S4
	VUMAX  V2.S4, V5.S4, V5.S4
	VUMAX  V3.S4, V6.S4, V6.S4
	SUBS   $16, R2
	BNE    loop

	VUMAX V4.S4, TOP.S4, TOP.S4
	VUMAX V5.S4, V6.S4, V6.S4
	VUMAX V6.S4, TOP.S4, TOP.S4
	RETURN_TOP(16)

// func quantize8NEON(dst *uint8, src *float32, n int, c *castLanes, scale float32) (amax float32)
TEXT ·quantize8NEON(SB), NOSPLIT, $0-44
	QUANTIZE_SETUP

loop:
	NEAREST(V8, V12)
	NEAREST(V9, V13)
	NEAREST(V10, V14)
	NEAREST(V11, V15)
	STORE8
	SUBS $16, R2
	BNE  loop
	RETURN_TOP(40)

// func quantize8StochasticNEON(dst *uint8, src *float32, n int, c *castLanes, scale float32, r *randomLanes) (amax float32)
TEXT ·quantize8StochasticNEON(SB), NOSPLIT, $0-52
	QUANTIZE_SETUP
	STOCHASTIC_SETUP
	MOVD r+40(FP), R4
	RANDOM_SETUP(R4)

loop:
	STOCHASTIC(V8, V12)
	STOCHASTIC(V9, V13)
	STOCHASTIC(V10, V14)
	STOCHASTIC(V11, V15)
	STORE8
	SUBS $16, R2
	BNE  loop
	RETURN_TOP(48)

// func quantize16NEON(dst *uint16, src *float32, n int, c *castLanes, scale float32) (amax float32)
TEXT ·quantize16NEON(SB), NOSPLIT, $0-44
	QUANTIZE_SETUP
	MOVD $0x8000, R5
	VDUP R5, SIGN16.H8

loop:
	NEAREST(V8, V12)
	NEAREST(V9, V13)
	NEAREST(V10, V14)
	NEAREST(V11, V15)
	STORE16(SIGN16)
	SUBS $16, R2
	BNE  loop
	RETURN_TOP(40)

// func quantize16StochasticNEON(dst *uint16, src *float32, n int, c *castLanes, scale float32, r *randomLanes) (amax float32)
TEXT ·quantize16StochasticNEON(SB), NOSPLIT, $0-52
	QUANTIZE_SETUP
	STOCHASTIC_SETUP
	MOVD r+40(FP), R4
	RANDOM_SETUP(R4)
	MOVD $0x8000, R5

loop:
	STOCHASTIC(V8, V12)
	STOCHASTIC(V9, V13)
	STOCHASTIC(V10, V14)
	STOCHASTIC(V11, V15)
	VDUP R5, V6.H8
	STORE16(V6)
	SUBS $16, R2
	BNE  loop
	RETURN_TOP(48)

// In BF16 the code is the upper half, and half of the last place 0x8000.

#define BELOW_HALF V20
#define ONE V21

#define BF16_SETUP \
	MOVD $0x7fff0000, R5 \
	VDUP R5, NAN.S4 \
	MOVD $0x7fff, R5 \
	VDUP R5, BELOW_HALF.S4 \
	MOVD $1, R5 \
	VDUP R5, ONE.S4

#define BF16_NEAREST(code) \
	VLD1.P 16(R1), [V0.S4] \
	NUMBERS \
	VUSHR  $16, V0.S4, V2.S4 \
	VAND   ONE.B16, V2.B16, V2.B16 \
	VADD   BELOW_HALF.S4, V2.S4, V2.S4 \
	VADD   V2.S4, V0.S4, code.S4 \
	VBIF   V4.B16, NAN.B16, code.B16

#define BF16_STOCHASTIC(code) \
	RANDOM \
	VLD1.P 16(R1), [V0.S4] \
	NUMBERS \
	VUSHR  $16, V1.S4, V2.S4 \
	VADD   V2.S4, V0.S4, code.S4 \
	VBIF   V4.B16, NAN.B16, code.B16

#define STORE_BF16 \
	VUZP2  V9.H8, V8.H8, V8.H8 \
	VUZP2  V11.H8, V10.H8, V9.H8 \
	VST1.P [V8.H8, V9.H8], 32(R0)

// func encodeBF16NEON(dst *uint16, src *float32, n int)
TEXT ·encodeBF16NEON(SB), NOSPLIT, $0-24
	CAST_SETUP
	BF16_SETUP

loop:
	BF16_NEAREST(V8)
	BF16_NEAREST(V9)
	BF16_NEAREST(V10)
	BF16_NEAREST(V11)
	STORE_BF16
	SUBS $16, R2
	BNE  loop
	RET

// func encodeBF16StochasticNEON(dst *uint16, src *float32, n int, r *randomLanes)
TEXT ·encodeBF16StochasticNEON(SB), NOSPLIT, $0-32
	CAST_SETUP
	BF16_SETUP
	MOVD r+24(FP), R4
	RANDOM_SETUP(R4)

loop:
	BF16_STOCHASTIC(V8)
	BF16_STOCHASTIC(V9)
	BF16_STOCHASTIC(V10)
	BF16_STOCHASTIC(V11)
	STORE_BF16
	SUBS $16, R2
	BNE  loop
	RET
