// This file redefines the macros of zmm_amd64.h for 256-bit vectors and AVX2.
// Include it after zmm_amd64.h.

#undef WIDTH
#undef LOG2
#undef AND
#undef XOR
#undef V0
#undef V1
#undef V2
#undef V3
#undef V4
#undef V5
#undef H0
#undef H1
#undef TOP
#undef SCALE
#undef WEYL
#undef KEY
#undef SRC
#undef ABS
#undef ONE
#undef LIMIT
#undef LOWEST
#undef NAN
#undef NEAREST_CONSTANTS
#undef MIX1
#undef MIX2
#undef FLOOR
#undef CEILING
#undef PLACES
#undef UNITS
#undef FIRST
#undef SECOND
#undef STEP
#undef SHUFFLE
#undef LANE_FIRSTS
#undef LANES
#undef RANDOM_CONSTANTS
#undef XOR3
#undef PLACE
#undef SIGN_ON_TOP
#undef NAN_FOR_NAN
#undef TOP_WORDS
#undef STORE_TOP_WORDS_AT
#undef FOLD_TOP

#define WIDTH 8
#define LOG2  3
#define AND   VPAND
#define XOR   VPXOR

#define V0 Y0
#define V1 Y1
#define V2 Y2
#define V3 Y3
#define V4 Y4
#define V5 Y5
#define H0 X0
#define H1 X1

#define TOP     Y6
#define SCALE   Y7
#define WEYL    Y8
#define KEY     Y9
#define SRC     Y12
#define ABS     Y13
#define STEP    Y14
#define SHUFFLE Y15

#define SCALE_INV    Y8
#define MAGNITUDES16 Y9
#define SIGNS        Y10
#define UPPER        upper<>+0(SB)

#define SCALE_INV_FROM(at) VBROADCASTSS at, SCALE_INV

#define UPPER_CONSTANT

// The other constants stay in memory: AVX2 has only 16 registers.
#define INF      castVectors_inf(R8)
#define ONE      castVectors_one(R8)
#define LIMIT    castVectors_limit(R8)
#define LOWEST   castVectors_lowest(R8)
#define SMALLEST castVectors_smallest(R8)
#define NAN      castVectors_nan(R8)
#define SIGN     castVectors_sign(R8)
#define MAGIC    castVectors_magic(R8)
#define DROP     castVectors_drop(R8)

#define NEAREST_CONSTANTS \
	VMOVDQU castVectors_abs(R8), ABS

#define MIX1    stochasticVectors_mix1(R8)
#define MIX2    stochasticVectors_mix2(R8)
#define FLOOR   stochasticVectors_floor(R8)
#define CEILING stochasticVectors_ceiling(R8)
#define PLACES  stochasticVectors_places(R8)
#define UNITS   stochasticVectors_units(R8)
#define FIRST   stochasticVectors_first(R8)
#define SECOND  stochasticVectors_second(R8)
#define LOW     stochasticVectors_low(R8)
#define HIGH    stochasticVectors_high(R8)

#define RANDOM_CONSTANTS \
	VMOVDQU      stochasticVectors_abs(R8), ABS \
	MOVL         $const_golden32, AX \
	VMOVD        AX, X14 \
	VPBROADCASTD X14, STEP

#define LANES ·lanes+64(SB)

#define XOR3(a, b, c) \
	VPXOR a, c, c \
	VPXOR b, c, c

#define PLACE \
	VCMPPS     $1, FLOOR, V2, V4 \
	VMULPS     UNITS, V2, V3 \
	VPSLLVD    PLACES, V2, V2 \
	VCVTTPS2DQ V3, V3 \
	VBLENDVPS  V4, V3, V2, V2

#define SIGN_ON_TOP \
	VPAND  ABS, V2, V2 \
	VPANDN SRC, ABS, V3 \
	VPOR   V3, V2, V2

// Stochastic rounding leaves no register for the scale, so each load broadcasts it.
#define TIMES_SCALE_INV(at) \
	VBROADCASTSS at, V3 \
	VMULPS       V3, SRC, SRC

#define LIMITED(x, to) \
	VPAND   ABS, x, to \
	VPMINUD LIMIT, to, to

// ROUND applies castNearest to code. MAGIC includes the subtractions that follow the sum.
#define ROUND(code) \
	VPAND   INF, code, V3 \
	VPMAXUD SMALLEST, V3, V3 \
	VPADDD  MAGIC, V3, V4 \
	VADDPS  V4, code, code \
	VPSRLVD DROP, V3, V3 \
	VPADDD  V3, code, code

#define SIGN_FROM(shift) \
	VPSRLD $shift, SRC, V3 \
	VPAND  SIGN, V3, V3 \
	VPOR   V3, V2, V2

#define UPPER_AND_LOWER VPBLENDW $0x55, V5, V2, V2

#define OR_SIGNS \
	VPAND SIGNS, V3, V3 \
	VPOR  V3, V2, V2

#define NAN_FOR_NAN \
	VCMPPS    $3, SRC, SRC, V3 \
	VBLENDVPS V3, ABS, V2, V2

#define LOW_BYTES VBROADCASTI128 bytes<>+0(SB), SHUFFLE
#define LOW_BYTES_OF_WORDS VBROADCASTI128 bytes<>+48(SB), SHUFFLE
#define TOP_BYTES VBROADCASTI128 bytes<>+16(SB), SHUFFLE
#define TOP_BYTES_OF_WORDS VBROADCASTI128 bytes<>+64(SB), SHUFFLE
#define TOP_WORDS VBROADCASTI128 bytes<>+32(SB), SHUFFLE

#define STORE_LOW_BYTES_AT(to) \
	VPSHUFB      SHUFFLE, V2, V2 \
	VEXTRACTI128 $1, Y2, X3 \
	VPUNPCKLDQ   X3, X2, X2 \
	VMOVQ        X2, to(DI)

#define STORE_LOW_BYTES STORE_LOW_BYTES_AT(0)

#define STORE_TOP_WORDS_AT(to) \
	VPSHUFB      SHUFFLE, V2, V2 \
	VEXTRACTI128 $1, Y2, X3 \
	VPUNPCKLQDQ  X3, X2, X2 \
	VMOVDQU      X2, (to)(DI)

#define STORE_TOP_BYTES STORE_LOW_BYTES
#define STORE_LOW_BYTES_OF_WORDS STORE_TOP_WORDS_AT(0)
#define STORE_TOP_BYTES_OF_WORDS STORE_LOW_BYTES_OF_WORDS

#define FOLD_TOP \
	VEXTRACTI128 $1, Y6, X0 \
	VPMAXUD      X0, X6, X6 \
	VPSHUFD      $0x4e, X6, X0 \
	VPMAXUD      X0, X6, X6 \
	VPSHUFD      $0xb1, X6, X0 \
	VPMAXUD      X0, X6, X6
