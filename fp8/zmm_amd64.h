// A cast is a macro that names registers, constants and what differs between
// instruction sets, so that it is the same for both widths of vectors. Here they
// are 512 bits wide; a file that includes this one includes ymm_amd64.h later,
// for the narrower casts.

#define WIDTH 16 // float32 in a vector
#define LOG2  4
#define AND   VPANDD
#define XOR   VPXORD

// V0-V5 are free; H0 and H1 are the lower halves of V0 and V1.
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

// The constants of randomVectors.
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
#define LANE_FIRSTS Z28 // the first 64 bits of each lane of 128

#define RANDOM_CONSTANTS \
	VPBROADCASTD    randomVectors_abs(R8), ABS \
	VPBROADCASTD    randomVectors_mix1(R8), MIX1 \
	VPBROADCASTD    randomVectors_mix2(R8), MIX2 \
	VPBROADCASTD    randomVectors_floor(R8), FLOOR \
	VPBROADCASTD    randomVectors_ceiling(R8), CEILING \
	VPBROADCASTD    randomVectors_places(R8), PLACES \
	VPBROADCASTD    randomVectors_units(R8), UNITS \
	VBROADCASTI64X4 randomVectors_first(R8), FIRST \
	VBROADCASTI64X4 randomVectors_second(R8), SECOND \
	MOVL            $const_golden32, AX \
	VPBROADCASTD    AX, STEP

#define LANES ·lanes+0(SB)

// XOR3 is c ^ a ^ b.
#define XOR3(a, b, c) VPTERNLOGD $0x96, a, b, c

// PLACE moves V2 to its place in the code; what is below FLOOR gets there as a
// number of UNITS.
#define PLACE \
	VCMPPS     $1, FLOOR, V2, K1 \
	VMULPS     UNITS, V2, V3 \
	VPSLLVD    PLACES, V2, V2 \
	VCVTTPS2DQ V3, K1, V2

// SIGN_ON_TOP gives V2 the sign of SRC.
#define SIGN_ON_TOP VPTERNLOGD $0xe4, ABS, SRC, V2

// NAN_FOR_NAN gives V2 the top word of NaN where SRC is one.
#define NAN_FOR_NAN \
	VCMPPS    $3, SRC, SRC, K1 \
	VMOVDQA32 ABS, K1, V2

// The words of V2 that are stored.
#define TOP_WORDS \
	VBROADCASTI32X4 bytes<>+32(SB), SHUFFLE \
	VMOVDQU32       firsts<>+0(SB), Y28

#define STORE_TOP_WORDS \
	VPSHUFB SHUFFLE, V2, V2 \
	VPERMQ  V2, LANE_FIRSTS, V2 \
	VMOVDQU Y2, (DI)

// FOLD_TOP leaves the largest lane of TOP in X6.
#define FOLD_TOP \
	VEXTRACTI64X4 $1, Z6, Y0 \
	VPMAXUD       Y0, Y6, Y6 \
	VEXTRACTI128  $1, Y6, X0 \
	VPMAXUD       X0, X6, X6 \
	VPSHUFD       $0x4e, X6, X0 \
	VPMAXUD       X0, X6, X6 \
	VPSHUFD       $0xb1, X6, X0 \
	VPMAXUD       X0, X6, X6
