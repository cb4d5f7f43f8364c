// A cast is a macro that names registers, constants and what differs between
// instruction sets, so that it is the same for both widths of vectors. Here they
// are 512 bits wide; a file that includes this one includes ymm_amd64.h later,
// for the narrower casts.

#define WIDTH 16 // float32 in a vector
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
#define INDEX  Z8
#define KEY0   Z9
#define KEY1   Z10
#define HALVES Z11
#define SRC    Z12
#define ABS    Z13

// Where elements have sixteen bits.
#define SCALE_INV Z23
#define UPPER     Z24

// Where there are no random numbers.
#define MAGNITUDES16 Z9
#define SIGNS        Z10

// The constants of castVectors.
#define ONE      Z15
#define LIMIT    Z16
#define LOWEST   Z17
#define SMALLEST Z18
#define NAN      Z19
#define SIGN     Z20
#define MAGICS0  Z21
#define MAGICS1  Z22

#define SCALE_INV_FROM(at) VBROADCASTSS at, SCALE_INV

#define UPPER_CONSTANT VPBROADCASTD upper<>+0(SB), UPPER

#define NEAREST_CONSTANTS \
	VPBROADCASTD castVectors_abs(R8), ABS \
	VPBROADCASTD castVectors_one(R8), ONE \
	VPBROADCASTD castVectors_limit(R8), LIMIT \
	VPBROADCASTD castVectors_lowest(R8), LOWEST \
	VPBROADCASTD castVectors_smallest(R8), SMALLEST \
	VPBROADCASTD castVectors_nan(R8), NAN \
	VPBROADCASTD castVectors_sign(R8), SIGN \
	VMOVDQU32    castVectors_magics(R8), MAGICS0 \
	VMOVDQU32    (castVectors_magics+64)(R8), MAGICS1

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
#define LOW     Z25
#define HIGH    Z26

#define SHUFFLE     Z27
#define LANE_FIRSTS Z28 // the first 32 bits of each lane of 128, or the first 64

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
	VBROADCASTI64X4 randomVectors_low(R8), LOW \
	VBROADCASTI64X4 randomVectors_high(R8), HIGH \
	MOVL            $WIDTH, AX \
	VPBROADCASTD    AX, STEP

#define LANES lanes<>+0(SB)

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

// TIMES_SCALE_INV multiplies SRC by the factor, which SCALE_INV_FROM(at) got ready.
#define TIMES_SCALE_INV(at) VMULPS SCALE_INV, SRC, SRC

// LIMITED is the smaller one of the magnitude of x and LIMIT.
#define LIMITED(x, to) \
	VPANDD ABS, x, to \
	VMINPS LIMIT, to, to

// ROUND is castNearest of code, which is at most LIMIT. What has to be added is
// looked up by the low five bits of the exponent, together with what castNearest
// adds afterwards.
#define ROUND(code) \
	VMAXPS   SMALLEST, code, V3 \
	VPSRLD   $23, V3, V3 \
	VPERMI2D MAGICS1, MAGICS0, V3 \
	VADDPS   V3, code, code

// SIGN_FROM sets the bit of SIGN in V2 to the sign of SRC, so many bits above.
#define SIGN_FROM(shift) \
	VPSRLD     $shift, SRC, V3 \
	VPTERNLOGD $0xf8, SIGN, V3, V2

// UPPER_AND_LOWER replaces the lower words of V2 by those of V5.
#define UPPER_AND_LOWER VPTERNLOGD $0xe4, UPPER, V5, V2

// OR_SIGNS adds the bits of SIGNS that V3 has to V2.
#define OR_SIGNS VPTERNLOGD $0xf8, SIGNS, V3, V2

// NAN_FOR_NAN gives V2 the top word of NaN where SRC is one.
#define NAN_FOR_NAN \
	VCMPPS    $3, SRC, SRC, K1 \
	VMOVDQA32 ABS, K1, V2

// The bytes or words of V2 that are stored, by their place in an element.
#define LOW_BYTES
#define LOW_BYTES_OF_WORDS
#define TOP_BYTES \
	VBROADCASTI32X4 bytes<>+16(SB), SHUFFLE \
	VMOVDQU32       firsts<>+0(SB), X28
#define TOP_BYTES_OF_WORDS \
	VBROADCASTI32X4 bytes<>+64(SB), SHUFFLE \
	VMOVDQU32       firsts<>+16(SB), Y28
#define TOP_WORDS \
	VBROADCASTI32X4 bytes<>+32(SB), SHUFFLE \
	VMOVDQU32       firsts<>+16(SB), Y28

#define STORE_LOW_BYTES_AT(to) VPMOVDB V2, to(DI)
#define STORE_LOW_BYTES STORE_LOW_BYTES_AT(0)

#define STORE_LOW_BYTES_OF_WORDS VPMOVWB V2, (DI)

// Two permutations are less than a shift and VPMOVDB, which is two.

#define STORE_TOP_BYTES \
	VPSHUFB SHUFFLE, V2, V2 \
	VPERMD  V2, LANE_FIRSTS, V2 \
	VMOVDQU X2, (DI)

#define STORE_TOP_BYTES_OF_WORDS \
	VPSHUFB SHUFFLE, V2, V2 \
	VPERMQ  V2, LANE_FIRSTS, V2 \
	VMOVDQU Y2, (DI)

#define STORE_TOP_WORDS STORE_TOP_BYTES_OF_WORDS

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
