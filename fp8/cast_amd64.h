// The arithmetic of the casts, for vectors of any width. A file that includes
// this one has named the registers (V0-V5 of a whole vector, H0 and H1 of half
// a one), the constants (registers, or memory with a whole vector in it), and
// the instructions that differ: WIDTH is the number of float32 in a vector.
//
// The loops: DI, SI and CX are dst, src and the elements left, a multiple of
// WIDTH. SRC holds the elements, V2 what becomes of them.

// LOAD loads SRC. The prefetch is for memory beyond the caches, where the
// processor's own ends with each page: two thirds of the speed of a copy
// become nine tenths.
#define LOAD \
	PREFETCHT0 2560(SI) \
	VMOVUPS    (SI), SRC

// MAGNITUDES loads SRC, its magnitudes to V0, and folds them into TOP.
#define MAGNITUDES \
	LOAD \
	AND     ABS, SRC, V0 \
	VPMAXUD V0, TOP, TOP

// SCALED makes V0 the magnitudes of SRC by SCALE, which is positive: the sign
// of SRC is that of the code.
#define SCALED \
	MAGNITUDES \
	VMULPS SCALE, V0, V0

// NEAREST is castNearest of V0, the result in the low bits of V2, with
// anything above them. MAGIC holds what castNearest subtracts afterwards.
#define NEAREST \
	VPMINUD LIMIT, V0, V2 \
	AND     INF, V2, V3 \
	VPMAXUD SMALLEST, V3, V3 \
	VPADDD  MAGIC, V3, V4 \
	VADDPS  V4, V2, V2 \
	VPSRLVD DROP, V3, V3 \
	VPADDD  V3, V2, V2

// STOCHASTIC is castStochastic of V0, the result as in NEAREST. The adder cuts
// the number off at its last place; what that leaves, divided by the unit of
// that place and times 2^32, is the discarded fraction.
#define STOCHASTIC \
	VPSRLD  $15, V1, V2 \
	XNOR(V2, V1) \
	VPMINUD LIMIT, V0, V2 \
	AND     INF, V2, V3 \
	VPMAXUD SMALLEST, V3, V3 \
	VPADDD  MAGIC, V3, V4 \
	CUT \
	VSUBPS  V4, V5, V4 \
	VSUBPS  V4, V2, V4 \
	VPSUBD  V3, FRACTION, V2 \
	VMULPS  V2, V4, V4 \
	VPSRLVD DROP, V3, V3 \
	VPADDD  V3, V5, V2 \
	CARRY

// Random is a chain of some sixty cycles. To keep several under way, the first
// mix is done one turn of the loop before the second, and that one turn before
// the cast: HALVES holds the first mix of the vector after the next, V1 the
// bits of the next, all but the last shift and XOR. What is mixed beyond the
// end costs two turns. XORs with the keys are joined with those of mix32, KEY0
// being the key's low half after its own first shift and XOR.

#define HALF_RANDOM \
	VPSRLD  $16, INDEX, HALVES \
	XOR3(KEY0, INDEX, HALVES) \
	VPADDD  STEP, INDEX, INDEX \
	VPMULLD MIX1, HALVES, HALVES \
	VPSRLD  $15, HALVES, V2 \
	XOR     V2, HALVES, HALVES \
	VPMULLD MIX2, HALVES, HALVES \
	VPSRLD  $15, HALVES, V2 \
	XOR3(KEY1, V2, HALVES)

#define RANDOM \
	VPSRLD  $16, HALVES, V1 \
	XOR     HALVES, V1, V1 \
	VPMULLD MIX1, V1, V1 \
	VPSRLD  $15, V1, V2 \
	XOR     V2, V1, V1 \
	VPMULLD MIX2, V1, V1 \
	HALF_RANDOM

// NEXT steps on by one vector, from and to elements of so many bytes.
#define NEXT(from, to) \
	ADDQ $(from*WIDTH), SI \
	ADDQ $(to*WIDTH), DI \
	SUBQ $WIDTH, CX \
	JNZ  loop

#define AMAX_LOOP \
loop: \
	MAGNITUDES \
	NEXT(4, 0)

#define QUANTIZE8_LOOP \
loop: \
	SCALED \
	NEAREST \
	SIGN_FROM(24) \
	STORE8 \
	NEXT(4, 1)

#define QUANTIZE8_STOCHASTIC_LOOP \
	HALF_RANDOM \
	RANDOM \
loop: \
	SCALED \
	STOCHASTIC \
	SIGN_FROM(24) \
	STORE8 \
	RANDOM \
	NEXT(4, 1)

// The conversion of the processor rounds as castNearest does.
#define QUANTIZE16_LOOP \
loop: \
	MAGNITUDES \
	VMULPS    SCALE, SRC, V0 \
	VMINPS    LIMIT, V0, V2 \
	VMAXPS    LOWEST, V2, V2 \
	VCVTPS2PH $0, V2, (DI) \
	NEXT(4, 2)

#define QUANTIZE16_STOCHASTIC_LOOP \
	HALF_RANDOM \
	RANDOM \
loop: \
	SCALED \
	STOCHASTIC \
	SIGN_FROM(16) \
	STORE16 \
	RANDOM \
	NEXT(4, 2)

// 0x7fff is both the NaN and what rounds to nearest, the last bit that stays
// added to it.
#define ENCODE_BF16_LOOP \
loop: \
	LOAD \
	VPSRLD  $16, SRC, V2 \
	AND     ONE, V2, V2 \
	VPADDD  NAN, SRC, V3 \
	VPADDD  V3, V2, V2 \
	VPSRLD  $16, V2, V2 \
	NAN_FOR_NAN \
	STORE16 \
	NEXT(4, 2)

#define ENCODE_BF16_STOCHASTIC_LOOP \
	HALF_RANDOM \
	RANDOM \
loop: \
	LOAD \
	VPSRLD  $15, V1, V2 \
	XOR     V2, V1, V1 \
	VPSRLD  $16, V1, V2 \
	VPADDD  SRC, V2, V2 \
	VPSRLD  $16, V2, V2 \
	NAN_FOR_NAN \
	STORE16 \
	RANDOM \
	NEXT(4, 2)

// The prefetches are for the next piece, where decoding a piece alternates
// with work on it and the processor forgets that it was reading.
#define DECODE_BF16_LOOP \
loop: \
	PREFETCHT0 4096(SI) \
	VPMOVZXWD (SI), V0 \
	VPSLLD    $16, V0, V0 \
	VMOVUPS   V0, (DI) \
	NEXT(2, 4)

#define DEQUANTIZE16_LOOP \
loop: \
	PREFETCHT0 4096(SI) \
	VCVTPH2PS (SI), V0 \
	VMULPS    SCALE, V0, V0 \
	VMOVUPS   V0, (DI) \
	NEXT(2, 4)

// E5M2 is the upper half of F16.
#define DEQUANTIZE_E5M2_LOOP \
loop: \
	VPMOVZXBW (SI), H0 \
	VPSLLW    $8, H0, H0 \
	VCVTPH2PS H0, V0 \
	VMULPS    SCALE, V0, V0 \
	VMOVUPS   V0, (DI) \
	NEXT(1, 4)

// E4M3 with its fields moved to their place in F16 is 2^-8 of its value,
// subnormals too, because the exponent biases are 7 and 15. Magnitudes above
// LARGEST get the top exponent of F16 instead. Multiplying by 2^8 is exact,
// and has to come first: 2^8 times the factor may overflow.
#define DEQUANTIZE_E4M3_LOOP \
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
	VMOVUPS   V0, (DI) \
	NEXT(1, 4)
