//go:build !noasm

#include "go_asm.h"
#include "neon_arm64.h"
#include "textflag.h"

// Casts to narrower formats, 16 elements per iteration. R0, R1 and R2 are dst, src
// and the number of elements left. V0 is a vector of elements, one of V8-V11 its
// codes. If the codes are in the low bits, one of V12-V15 has the signs in its high
// bits, cleared for NaN. V2-V6 are temporaries.

#define ABS V16
#define INF V17
#define TOP V18
#define LIMIT V20
#define SMALLEST V21
#define NAN V22
#define MAGIC V24
#define SIGN16 V25
#define CEILING V20
#define FLOOR V21
#define WEYL V26
#define KEY V27

// Register numbers (19 is V19), as the macros of neon_arm64.h take them.
#define STEP 7
#define SCALE 19
#define RIGHT 23
#define UNITS 22
#define PLACES 23
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
	VDUP    R5, V19.S4

#define NEAREST_SETUP \
	QUANTIZE_SETUP \
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
	QUANTIZE_SETUP \
	MOVWU stochasticLanes_ceiling(R3), R5 \
	VDUP  R5, CEILING.S4 \
	MOVWU stochasticLanes_floor(R3), R5 \
	VDUP  R5, FLOOR.S4 \
	MOVWU stochasticLanes_units(R3), R5 \
	VDUP  R5, V22.S4 \
	MOVWU stochasticLanes_places(R3), R5 \
	VDUP  R5, V23.S4 \
	RANDOM_SETUP

// RANDOM_SETUP loads the state of Random from R3.
#define RANDOM_SETUP \
	MOVD  $const_mix1, R5 \
	VDUP  R5, V29.S4 \
	MOVD  $const_mix2, R5 \
	VDUP  R5, V30.S4 \
	MOVWU stochasticLanes_key(R3), R5 \
	VDUP  R5, KEY.S4 \
	MOVD  $const_golden32, R5 \
	VDUP  R5, V7.S4 \
	VMOV  ZR, V1.S[0] \
	MOVD  $1, R5 \
	VMOV  R5, V1.S[1] \
	MOVD  $2, R5 \
	VMOV  R5, V1.S[2] \
	MOVD  $3, R5 \
	VMOV  R5, V1.S[3] \
	VMUL(STEP, 1, 1) \
	MOVWU stochasticLanes_first(R3), R5 \
	VDUP  R5, WEYL.S4 \
	VADD  V1.S4, WEYL.S4, WEYL.S4 \
	VSHL  $2, V7.S4, V7.S4

// RANDOM sets V1 to the words of Random for the next eight elements. WEYL holds their
// Weyl values.
#define RANDOM \
	VUSHR $16, WEYL.S4, V1.S4 \
	VEOR  KEY.B16, WEYL.B16, V2.B16 \
	VEOR  V2.B16, V1.B16, V1.B16 \
	VMUL(MIX1, 1, 1) \
	VUSHR $15, V1.S4, V2.S4 \
	VEOR  WEYL.B16, V1.B16, V1.B16 \
	VEOR  V2.B16, V1.B16, V1.B16 \
	VADD  V7.S4, WEYL.S4, WEYL.S4 \
	VMUL(MIX2, 1, 1) \
	VUSHR $16, V1.S4, V2.S4 \
	VEOR  V2.B16, V1.B16, V1.B16

// SCALED sets V0 to the next four elements times SCALE, V3 to their magnitudes and V4 to
// all ones where they are not NaN. It folds the magnitudes before scaling into TOP.
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

// NEAREST is castNearest. MAGIC includes its two subtractions that change the low bits.
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

// STOCHASTIC is castStochastic with the random bits V6. The result is in the top bits of
// code, the register with the given number. SCALE includes lift, which maps the smallest
// normal value to FLOOR. Shifted float32 bits from there on are the code, except for one
// exponent bit above it, which the sign replaces. Values below FLOOR get to their place
// by a multiplication with UNITS and a conversion to integer. NaN becomes ABS.
#define STOCHASTIC(number, code) \
	SCALED \
	VUMIN CEILING.S4, V3.S4, V3.S4 \
	VCMHI(3, 21, 5) \
	VFMUL(UNITS, 3, 2) \
	VFCVTZS(2, 2) \
	VUSHL(PLACES, 3, number) \
	VBIT  V5.B16, V2.B16, code.B16 \
	VADD  V6.S4, code.S4, code.S4 \
	VBIF  ABS.B16, V0.B16, code.B16 \
	VBIF  V4.B16, ABS.B16, code.B16

// EIGHT runs do twice, for eight elements, with their random bits shifted left by shift.
#define EIGHT(shift, do, number0, code0, number1, code1) \
	RANDOM \
	VUSHLL  $shift, V1.H4, V6.S4 \
	do(number0, code0) \
	VUSHLL2 $shift, V1.H8, V6.S4 \
	do(number1, code1)

#define SIXTEEN(shift, do) \
	EIGHT(shift, do, 8, V8, 9, V9) \
	EIGHT(shift, do, 10, V10, 11, V11)

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

#define STORE16 \
	VUZP1  V9.H8, V8.H8, V8.H8 \
	VUZP1  V11.H8, V10.H8, V9.H8 \
	VUZP2  V13.H8, V12.H8, V12.H8 \
	VUZP2  V15.H8, V14.H8, V13.H8 \
	VBIT   SIGN16.B16, V12.B16, V8.B16 \
	VBIT   SIGN16.B16, V13.B16, V9.B16 \
	VST1.P [V8.H8, V9.H8], 32(R0)

#define STORE_TOP_BYTES \
	VUZP2  V9.H8, V8.H8, V8.H8 \
	VUZP2  V11.H8, V10.H8, V10.H8 \
	VUZP2  V10.B16, V8.B16, V8.B16 \
	VST1.P [V8.B16], 16(R0)

#define STORE_TOP_WORDS \
	VUZP2  V9.H8, V8.H8, V8.H8 \
	VUZP2  V11.H8, V10.H8, V9.H8 \
	VST1.P [V8.H8, V9.H8], 32(R0)

// RETURN_TOP returns the largest lane of TOP.
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
	NEAREST_SETUP

loop:
	NEAREST(V8, V12)
	NEAREST(V9, V13)
	NEAREST(V10, V14)
	NEAREST(V11, V15)
	STORE8
	SUBS $16, R2
	BNE  loop
	RETURN_TOP(40)

// func quantize8StochasticNEON(dst *uint8, src *float32, n int, c *stochasticLanes, scale float32) (amax float32)
TEXT ·quantize8StochasticNEON(SB), NOSPLIT, $0-44
	STOCHASTIC_SETUP

loop:
	SIXTEEN(8, STOCHASTIC)
	STORE_TOP_BYTES
	SUBS $16, R2
	BNE  loop
	RETURN_TOP(40)

// func quantize16NEON(dst *uint16, src *float32, n int, c *castLanes, scale float32) (amax float32)
TEXT ·quantize16NEON(SB), NOSPLIT, $0-44
	NEAREST_SETUP
	MOVD $0x8000, R5
	VDUP R5, SIGN16.H8

loop:
	NEAREST(V8, V12)
	NEAREST(V9, V13)
	NEAREST(V10, V14)
	NEAREST(V11, V15)
	STORE16
	SUBS $16, R2
	BNE  loop
	RETURN_TOP(40)

// func quantize16StochasticNEON(dst *uint16, src *float32, n int, c *stochasticLanes, scale float32) (amax float32)
TEXT ·quantize16StochasticNEON(SB), NOSPLIT, $0-44
	STOCHASTIC_SETUP

loop:
	SIXTEEN(0, STOCHASTIC)
	STORE_TOP_WORDS
	SUBS $16, R2
	BNE  loop
	RETURN_TOP(40)

// A BF16 code is the upper half of the float32; half a unit in its last place is 0x8000.

#define BELOW_HALF V20
#define ONE V21

#define BF16_NEAREST(code) \
	VLD1.P 16(R1), [V0.S4] \
	NUMBERS \
	VUSHR  $16, V0.S4, V2.S4 \
	VAND   ONE.B16, V2.B16, V2.B16 \
	VADD   BELOW_HALF.S4, V2.S4, V2.S4 \
	VADD   V2.S4, V0.S4, code.S4 \
	VBIF   V4.B16, ABS.B16, code.B16

#define BF16_STOCHASTIC(number, code) \
	VLD1.P 16(R1), [V0.S4] \
	NUMBERS \
	VADD   V6.S4, V0.S4, code.S4 \
	VBIF   V4.B16, ABS.B16, code.B16

// func encodeBF16NEON(dst *uint16, src *float32, n int)
TEXT ·encodeBF16NEON(SB), NOSPLIT, $0-24
	CAST_SETUP
	MOVD $0x7fff, R5
	VDUP R5, BELOW_HALF.S4
	MOVD $1, R5
	VDUP R5, ONE.S4

loop:
	BF16_NEAREST(V8)
	BF16_NEAREST(V9)
	BF16_NEAREST(V10)
	BF16_NEAREST(V11)
	STORE_TOP_WORDS
	SUBS $16, R2
	BNE  loop
	RET

// func encodeBF16StochasticNEON(dst *uint16, src *float32, n int, c *stochasticLanes)
TEXT ·encodeBF16StochasticNEON(SB), NOSPLIT, $0-32
	CAST_SETUP
	MOVD c+24(FP), R3
	RANDOM_SETUP

loop:
	SIXTEEN(0, BF16_STOCHASTIC)
	STORE_TOP_WORDS
	SUBS $16, R2
	BNE  loop
	RET
