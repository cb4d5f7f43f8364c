// AVX-512 casts to eight bits, 64 elements per iteration: one cache line of codes. These
// macros are for rounding to nearest (lines_amd64.s) and stochastic rounding
// (lines_stochastic_amd64.s).
//
// Storing each vector of elements by itself would write a quarter of a line and take two
// instructions to narrow; merging four vectors of codes into one takes nine. The
// arithmetic is that of cast_amd64.s, which casts the remaining elements.
//
// DI, SI and CX are dst, src and the number of elements left; R9 is nonTemporal. Z0-Z3
// hold elements, Z4-Z7 their codes, Z8-Z11 are temporaries.

#define TOP     Z12
#define SCALE   Z13
#define ABS     Z14
#define UPPER   Z15
#define SIGNS   Z18

// F16 sources: scaleInv, and the multipliers that shift the halves of a lane by 13 bits.
#define INVERSE Z19
#define LOWER13 Z15
#define UPPER13 Z27

// PREFETCH loads elements far enough ahead for data outside the caches, where the
// hardware prefetcher stops at each page.
#define PREFETCH(at) PREFETCHT0 (4096+at)(SI)

#define BEGIN(signs) \
	MOVQ         dst+0(FP), DI \
	MOVQ         src+8(FP), SI \
	MOVQ         n+16(FP), CX \
	MOVQ         c+24(FP), R8 \
	VBROADCASTSS scale+32(FP), SCALE \
	VPXORD       TOP, TOP, TOP \
	MOVL         $0x80808080, AX \
	VPBROADCASTD AX, SIGNS \
	MOVL         $signs, AX \
	VPBROADCASTD AX, ABS \
	MOVL         $0x7fff0000, AX \
	VPBROADCASTD AX, UPPER

// END stores the codes Z4 to a line of dst and starts the next iteration. NON_TEMPORAL,
// placed after RETURN, bypasses the caches, which avoids reading the line first.
#define END(bytes) \
	TESTL     R9, R9 \
	JNZ       nontemporal \
	VMOVDQU64 Z4, (DI) \
next: \
	ADDQ      $(64*bytes), SI \
	ADDQ      $64, DI \
	SUBQ      $64, CX \
	JNZ       loop

#define NON_TEMPORAL \
nontemporal: \
	VMOVNTDQ Z4, (DI) \
	JMP      next

// FOLD_TOP reduces TOP to its largest lane, in X0.
#define FOLD_TOP \
	VEXTRACTI64X4 $1, TOP, Y0 \
	VPMAXUD       Y0, Y12, Y0 \
	VEXTRACTI128  $1, Y0, X1 \
	VPMAXUD       X1, X0, X0 \
	VPSHUFD       $0x4e, X0, X1 \
	VPMAXUD       X1, X0, X0 \
	VPSHUFD       $0xb1, X0, X1 \
	VPMAXUD       X1, X0, X0

// FOLD_TOP_WORDS reduces TOP to its largest 16-bit word, in X0.
#define FOLD_TOP_WORDS \
	VPSRLD  $16, TOP, Z0 \
	VPSLLD  $16, TOP, TOP \
	VPSRLD  $16, TOP, TOP \
	VPMAXUD Z0, TOP, TOP \
	FOLD_TOP

#define RETURN(amax) \
	VMOVSS X0, amax \
	VZEROUPPER \
	RET

// Each 32-bit lane holds two BF16 elements. Clearing the lower half gives the upper
// element as float32; shifting the lower half up gives the lower element. Signs and the
// amax use 16-bit words.
#define PAIRS_BF16(at, x, lower, upper) \
	VMOVDQU64 at(SI), x \
	PREFETCH(at) \
	VPANDD    ABS, x, upper \
	VPMAXUW   upper, TOP, TOP \
	VPSLLD    $16, upper, lower \
	VPANDD    UPPER, upper, upper \
	VMULPS    SCALE, lower, lower \
	VMULPS    SCALE, upper, upper

// The bits of an F16 magnitude, shifted left by 13, are a float32 that is 2^112 times too
// small, for subnormals too. VSCALEFPS corrects that at the same speed for subnormal
// inputs. VMULPS, with 2^112 in its multiplier, took up to twice as long if subnormals
// were few (Zen 5). The amax is the value of the largest magnitude of the codes times
// scaleInv, which is positive.
#define PAIRS_F16(at, x, lower, upper) \
	VMOVDQU64 at(SI), x \
	PREFETCH(at) \
	VPANDD    ABS, x, upper \
	VPMAXUW   upper, TOP, TOP \
	VPMADDWD  LOWER13, upper, lower \
	VPMADDWD  UPPER13, upper, upper \
	VSCALEFPS.BCST words<>+8(SB), lower, lower \
	VSCALEFPS.BCST words<>+8(SB), upper, upper \
	VMULPS    INVERSE, lower, lower \
	VMULPS    INVERSE, upper, upper \
	VMULPS    SCALE, lower, lower \
	VMULPS    SCALE, upper, upper

#define BEGIN_F16(scaleInv) \
	VBROADCASTSS scaleInv, INVERSE \
	MOVL         $0x2000, AX \
	VPBROADCASTD AX, LOWER13 \
	VPSLLD       $16, LOWER13, UPPER13

#define RETURN_F16(scaleInv, amax) \
	FOLD_TOP_WORDS \
	VCVTPH2PS X0, X0 \
	VMULSS    scaleInv, X0, X0 \
	RETURN(amax)

DATA quarters<>+0(SB)/8, $0x0000000400000000
DATA quarters<>+8(SB)/8, $0x0000000c00000008
DATA quarters<>+16(SB)/8, $0x0000000500000001
DATA quarters<>+24(SB)/8, $0x0000000d00000009
DATA quarters<>+32(SB)/8, $0x0000000600000002
DATA quarters<>+40(SB)/8, $0x0000000e0000000a
DATA quarters<>+48(SB)/8, $0x0000000700000003
DATA quarters<>+56(SB)/8, $0x0000000f0000000b
GLOBL quarters<>(SB), RODATA|NOPTR, $64

DATA halves<>+0(SB)/8, $0
DATA halves<>+8(SB)/8, $2
DATA halves<>+16(SB)/8, $4
DATA halves<>+24(SB)/8, $6
DATA halves<>+32(SB)/8, $1
DATA halves<>+40(SB)/8, $3
DATA halves<>+48(SB)/8, $5
DATA halves<>+56(SB)/8, $7
GLOBL halves<>(SB), RODATA|NOPTR, $64

// Mask of the sign bytes, mask of the upper words, 112 as float32.
DATA words<>+0(SB)/4, $0x80808080
DATA words<>+4(SB)/4, $0xffff0000
DATA words<>+8(SB)/4, $0x42e00000
GLOBL words<>(SB), RODATA|NOPTR, $12
