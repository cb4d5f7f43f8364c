// Each cast is one macro for AVX-512 and AVX2. It refers to registers, constants and
// instructions by macros, which this file defines for 512-bit vectors. A file that
// includes this one later includes ymm_amd64.h, which redefines them for 256 bits.

#define WIDTH 16 // float32 elements per vector
#define LOG2  4
#define AND   VPANDD
#define XOR   VPXORD

// V0-V5 are temporaries; H0 and H1 are the lower halves of V0 and V1.
#define V0 Z0
#define V1 Z1
#define V2 Z2
#define V3 Z3
#define V4 Z4
#define V5 Z5
#define H0 Y0
#define H1 Y1

#define TOP    Z6
#define SCALE  Z7
#define WEYL   Z8
#define KEY    Z9
#define SRC    Z12
#define ABS    Z13

// The constants of castVectors.
#define ONE      Z15
#define LIMIT    Z16
#define LOWEST   Z17
#define NAN      Z19

#define NEAREST_CONSTANTS \
	VPBROADCASTD castVectors_abs(R8), ABS \
	VPBROADCASTD castVectors_one(R8), ONE \
	VPBROADCASTD castVectors_limit(R8), LIMIT \
	VPBROADCASTD castVectors_lowest(R8), LOWEST \
	VPBROADCASTD castVectors_nan(R8), NAN

// The constants of stochasticVectors.
#define MIX1    Z14
#define MIX2    Z15
#define FLOOR   Z16
#define CEILING Z17
#define PLACES  Z18
#define UNITS   Z19
#define FIRST   Z20
#define SECOND  Z21
#define STEP    Z22

#define SHUFFLE     Z27
#define LANE_FIRSTS Z28 // VPERMQ indices of the low 64 bits of each 128-bit lane

#define RANDOM_CONSTANTS \
	VPBROADCASTD    stochasticVectors_abs(R8), ABS \
	VPBROADCASTD    stochasticVectors_mix1(R8), MIX1 \
	VPBROADCASTD    stochasticVectors_mix2(R8), MIX2 \
	VPBROADCASTD    stochasticVectors_floor(R8), FLOOR \
	VPBROADCASTD    stochasticVectors_ceiling(R8), CEILING \
	VPBROADCASTD    stochasticVectors_places(R8), PLACES \
	VPBROADCASTD    stochasticVectors_units(R8), UNITS \
	VBROADCASTI64X4 stochasticVectors_first(R8), FIRST \
	VBROADCASTI64X4 stochasticVectors_second(R8), SECOND \
	MOVL            $const_golden32, AX \
	VPBROADCASTD    AX, STEP

#define LANES ·lanes+0(SB)

// XOR3 sets c to a ^ b ^ c.
#define XOR3(a, b, c) VPTERNLOGD $0x96, a, b, c

// PLACE shifts V2 until the code is on top. Values below FLOOR get there by a
// multiplication with UNITS and a conversion to integer.
#define PLACE \
	VCMPPS     $1, FLOOR, V2, K1 \
	VMULPS     UNITS, V2, V3 \
	VPSLLVD    PLACES, V2, V2 \
	VCVTTPS2DQ V3, K1, V2

// SIGN_ON_TOP gives V2 the sign of SRC.
#define SIGN_ON_TOP VPTERNLOGD $0xe4, ABS, SRC, V2

// NAN_FOR_NAN sets the top word of V2 to the NaN code where SRC is NaN.
#define NAN_FOR_NAN \
	VCMPPS    $3, SRC, SRC, K1 \
	VMOVDQA32 ABS, K1, V2

// TOP_WORDS loads the shuffles with which STORE_TOP_WORDS_AT stores the top words of V2.
#define TOP_WORDS \
	VBROADCASTI32X4 bytes<>+32(SB), SHUFFLE \
	VMOVDQU32       firsts<>+0(SB), Y28

#define STORE_TOP_WORDS_AT(to) \
	VPSHUFB SHUFFLE, V2, V2 \
	VPERMQ  V2, LANE_FIRSTS, V2 \
	VMOVDQU Y2, (to)(DI)

// FOLD_TOP reduces TOP to its largest lane, in X6.
#define FOLD_TOP \
	VEXTRACTI64X4 $1, Z6, Y0 \
	VPMAXUD       Y0, Y6, Y6 \
	VEXTRACTI128  $1, Y6, X0 \
	VPMAXUD       X0, X6, X6 \
	VPSHUFD       $0x4e, X6, X0 \
	VPMAXUD       X0, X6, X6 \
	VPSHUFD       $0xb1, X6, X0 \
	VPMAXUD       X0, X6, X6
