//go:build !noasm

#include "go_asm.h"
#include "textflag.h"

// AdamW from codes to codes in registers, for type codes (codes.go): the arithmetic of
// simd.AdamW between the casts of package fp8, which explains them. The divisions and roots
// of one vector overlap with the casts of another. Scales come from the amaxes, so no cast
// saturates.
//
// DI points to the struct codes; R8, R9, R10 and R11 to master, moments and gradient. AX
// counts elements, 32 per iteration, up to CX.

#define COEF     Z16
#define BETA1    Z17
#define REST1    Z18
#define BETA2    Z19
#define REST2    Z20
#define DECAY    Z21
#define RATE     Z22
#define ROOT     Z23
#define EPSILON  Z24
#define FIELDS   Y25
#define ABS      Z26
#define MIN_POSITIVE X31

#define BEGIN \
	MOVQ c+0(FP), DI \
	MOVQ p+8(FP), R8 \
	MOVQ m+16(FP), R9 \
	MOVQ v+24(FP), R10 \
	MOVQ grad+32(FP), R11 \
	MOVQ n+40(FP), CX \
	VBROADCASTSS codes_rule+0(DI), COEF \
	VBROADCASTSS codes_rule+4(DI), BETA1 \
	VBROADCASTSS codes_rule+8(DI), REST1 \
	VBROADCASTSS codes_rule+12(DI), BETA2 \
	VBROADCASTSS codes_rule+16(DI), REST2 \
	VBROADCASTSS codes_rule+20(DI), DECAY \
	VBROADCASTSS codes_rule+24(DI), RATE \
	VBROADCASTSS codes_rule+28(DI), ROOT \
	VBROADCASTSS codes_rule+32(DI), EPSILON \
	MOVL         $0x7fffffff, AX \
	VPBROADCASTD AX, ABS \
	MOVL         $0xbf80, AX \
	VPBROADCASTW AX, FIELDS \
	VPBROADCASTB codes_minPositive(DI), MIN_POSITIVE \
	XORQ         AX, AX

// UPDATE sets p, m and v to the new values of the first or second (k is 0 or 1)
// sixteen elements. It moves the fields of E4M3 to their place in F16, which gives 2^-8
// of the value; inv compensates. No code may be NaN. It overwrites Z8 and Z9.
#define UPDATE(k, p, m, v) \
	VCVTPH2PS   (32*k)(R8)(AX*2), p \
	VMULPS.BCST codes_inv+0(DI), p, p \
	VPMOVSXBW   (16*k)(R9)(AX*1), Y8 \
	VPSLLW      $7, Y8, Y8 \
	VPANDD      FIELDS, Y8, Y8 \
	VCVTPH2PS   Y8, m \
	VMULPS.BCST codes_inv+4(DI), m, m \
	VPMOVZXBW   (16*k)(R10)(AX*1), Y9 \
	VPSLLW      $8, Y9, Y9 \
	VCVTPH2PS   Y9, v \
	VMULPS.BCST codes_inv+8(DI), v, v \
	VMULPS      (64*k)(R11)(AX*4), COEF, Z8 \
	VMULPS      m, BETA1, m \
	VMULPS      Z8, REST1, Z9 \
	VADDPS      Z9, m, m \
	VMULPS      Z8, Z8, Z8 \
	VMULPS      Z8, REST2, Z8 \
	VMULPS      v, BETA2, v \
	VADDPS      Z8, v, v \
	VSQRTPS     v, Z8 \
	VMULPS      Z8, ROOT, Z8 \
	VADDPS      EPSILON, Z8, Z8 \
	VDIVPS      Z8, m, Z8 \
	VMULPS      Z8, RATE, Z8 \
	VMULPS      p, DECAY, p \
	VSUBPS      Z8, p, p

#define PREFETCH(ahead) \
	PREFETCHT0 (4*ahead)(R11)(AX*4) \
	PREFETCHT0 (4*ahead+64)(R11)(AX*4) \
	PREFETCHT0 (2*ahead)(R8)(AX*2)

// POSITIVE sets K2 where second moments are not 0. STORE_V stores the codes in the low
// bytes of codes; where K2 is set, MIN_POSITIVE is the smallest.
#define POSITIVE(v) \
	VPTESTMD v, v, K2

#define STORE_V(codes, to) \
	VPMOVDB codes, X7 \
	VPMAXUB MIN_POSITIVE, X7, K2, X7 \
	VMOVDQU X7, to

// LARGEST folds the magnitude of x into top.
#define LARGEST(x, top) \
	VPANDD  ABS, x, Z8 \
	VPMAXUD Z8, top, top

#define LARGEST_OF(k) \
	UPDATE(k, Z0, Z1, Z2) \
	LARGEST(Z0, Z3) \
	LARGEST(Z1, Z4) \
	LARGEST(Z2, Z5)

// func amaxAVX512(c *codes, p *uint16, m, v *uint8, grad *float32, n int, lanes *[3][16]uint32) (largest uint8)
TEXT ·amaxAVX512(SB), NOSPLIT, $0-57
	BEGIN
	MOVQ         lanes+48(FP), DX
	MOVL         $0x7f7f7f7f, BX
	VPBROADCASTD BX, Y7
	VPXORD       Z3, Z3, Z3
	VPXORD       Z4, Z4, Z4
	VPXORD       Z5, Z5, Z5
	VPXOR        Y6, Y6, Y6

loop:
	PREFETCH(512)
	VPAND    (R9)(AX*1), Y7, Y8
	VPMAXUB  Y8, Y6, Y6
	LARGEST_OF(0)
	LARGEST_OF(1)
	ADDQ     $32, AX
	CMPQ     AX, CX
	JB       loop

	VMOVDQU32    Z3, 0(DX)
	VMOVDQU32    Z4, 64(DX)
	VMOVDQU32    Z5, 128(DX)
	VEXTRACTI128 $1, Y6, X0
	VPMAXUB      X0, X6, X6
	VPSRLDQ      $8, X6, X0
	VPMAXUB      X0, X6, X6
	VPSRLDQ      $4, X6, X0
	VPMAXUB      X0, X6, X6
	VPSRLDQ      $2, X6, X0
	VPMAXUB      X0, X6, X6
	VPSRLDQ      $1, X6, X0
	VPMAXUB      X0, X6, X6
	VMOVD        X6, AX
	MOVB         AX, largest+56(FP)
	VZEROUPPER
	RET

#define MIX1     Z10
#define MIX2     Z11
#define MIN_NORMAL Z12
#define WEYL     Z13
#define STEP     Z14
#define COUNTERS Z15
#define WORDS1   Z27
#define WORDS2   Z28
#define BYTES1   Z29
#define BYTES2   Z30

// RANDOM sets Z6 to the words of fp8.Random for state i. The three states share the Weyl
// sequence WEYL, each with an offset of its own.
#define RANDOM(i) \
	VPADDD.BCST     (codes_first+4*i)(DI), WEYL, COUNTERS \
	VPSRLD          $16, COUNTERS, Z6 \
	VPTERNLOGD.BCST $0x96, (codes_key+4*i)(DI), COUNTERS, Z6 \
	VPMULLD         MIX1, Z6, Z6 \
	VPSRLD          $15, Z6, Z7 \
	VPTERNLOGD      $0x96, COUNTERS, Z7, Z6 \
	VPMULLD         MIX2, Z6, Z6 \
	VPSRLD          $16, Z6, Z7 \
	VPXORD          Z7, Z6, Z6

// ROUND sets the upper bits of x to its code for state i, whose exponent has places
// fewer bits than that of float32.
#define ROUND(i, x, places, random) \
	VPANDD       ABS, x, Z7 \
	VMULPS.BCST  (codes_scale+4*i)(DI), Z7, Z7 \
	VPSHUFB      random, Z6, Z9 \
	VCMPPS       $1, MIN_NORMAL, Z7, K1 \
	VMULPS.BCST  (codes_units+4*i)(DI), Z7, Z8 \
	VPSLLD       $places, Z7, Z7 \
	VCVTTPS2DQ   Z8, K1, Z7 \
	VPADDD       Z9, Z7, Z7 \
	VPTERNLOGD   $0xd8, ABS, Z7, x

#define STORE8(x, to) \
	VPSRLD  $24, x, x \
	VPMOVDB x, to

#define STORE16(x, to) \
	VPSRLD  $16, x, x \
	VPMOVDW x, to

// func stochasticAVX512(c *codes, p *uint16, m, v *uint8, grad *float32, n int, word uint32)
TEXT ·stochasticAVX512(SB), NOSPLIT, $0-52
	BEGIN
	VBROADCASTSS    word+48(FP), WEYL
	VPADDD          lanes<>+0(SB), WEYL, WEYL
	MOVL            $0x9e3779b9, BX
	VPBROADCASTD    BX, STEP
	VPMULLD         STEP, WEYL, WEYL
	VPSLLD          $4, STEP, STEP
	VBROADCASTI32X4 lanes<>+64(SB), WORDS1
	VBROADCASTI32X4 lanes<>+80(SB), WORDS2
	VBROADCASTI32X4 lanes<>+96(SB), BYTES1
	VBROADCASTI32X4 lanes<>+112(SB), BYTES2
	MOVL            $0x7feb352d, BX
	VPBROADCASTD    BX, MIX1
	MOVL            $0x846ca68b, BX
	VPBROADCASTD    BX, MIX2
	MOVL            $0x40800000, BX // 4
	VPBROADCASTD    BX, MIN_NORMAL

loop:
	PREFETCH(512)
	UPDATE(0, Z0, Z1, Z2)
	UPDATE(1, Z3, Z4, Z5)
	RANDOM(0)
	ROUND(0, Z0, 3, WORDS1)
	ROUND(0, Z3, 3, WORDS2)
	STORE16(Z0, (R8)(AX*2))
	STORE16(Z3, 32(R8)(AX*2))
	RANDOM(1)
	ROUND(1, Z1, 4, BYTES1)
	ROUND(1, Z4, 4, BYTES2)
	STORE8(Z1, (R9)(AX*1))
	STORE8(Z4, 16(R9)(AX*1))
	RANDOM(2)
	POSITIVE(Z2)
	ROUND(2, Z2, 3, BYTES1)
	VPSRLD $24, Z2, Z2
	STORE_V(Z2, (R10)(AX*1))
	POSITIVE(Z5)
	ROUND(2, Z5, 3, BYTES2)
	VPSRLD $24, Z5, Z5
	STORE_V(Z5, 16(R10)(AX*1))
	VPADDD STEP, WEYL, WEYL
	ADDQ   $32, AX
	CMPQ   AX, CX
	JB     loop
	VZEROUPPER
	RET

// NEAREST16 stores x as F16. VCVTPS2PH rounds to nearest even.
#define NEAREST16(x, to) \
	VMULPS.BCST codes_scale+0(DI), x, x \
	VCVTPS2PH   $0, x, to

// NEAREST8 sets the low bytes of Z7 to the codes of x for state i, whose format has drop
// fewer significand bits than float32. The FP32 addition rounds: see castNearest of
// package fp8.
#define NEAREST8(i, x, drop) \
	VPANDD       ABS, x, Z7 \
	VMULPS.BCST  (codes_scale+4*i)(DI), Z7, Z7 \
	VPANDD       INFINITY, Z7, Z8 \
	VPMAXUD.BCST (codes_smallest+4*i)(DI), Z8, Z8 \
	VPADDD.BCST  (codes_magic+4*i)(DI), Z8, Z9 \
	VADDPS       Z9, Z7, Z7 \
	VPSRLD       $drop, Z8, Z8 \
	VPADDD       Z8, Z7, Z7 \
	VPSRLD       $24, x, x \
	VPTERNLOGD   $0xf8, SIGN, x, Z7

#define INFINITY Z10
#define SIGN     Z11

#define NEAREST_OF(k) \
	UPDATE(k, Z0, Z1, Z2) \
	NEAREST16(Z0, (32*k)(R8)(AX*2)) \
	NEAREST8(1, Z1, 20) \
	VPMOVDB Z7, (16*k)(R9)(AX*1) \
	POSITIVE(Z2) \
	NEAREST8(2, Z2, 21) \
	STORE_V(Z7, (16*k)(R10)(AX*1))

// func nearestAVX512(c *codes, p *uint16, m, v *uint8, grad *float32, n int)
TEXT ·nearestAVX512(SB), NOSPLIT, $0-48
	BEGIN
	MOVL         $0x7f800000, BX
	VPBROADCASTD BX, INFINITY
	MOVL         $0x80, BX
	VPBROADCASTD BX, SIGN

loop:
	PREFETCH(512)
	NEAREST_OF(0)
	NEAREST_OF(1)
	ADDQ $32, AX
	CMPQ AX, CX
	JB   loop
	VZEROUPPER
	RET

// adamLanes holds the indices of random words, in an order that keeps the bytes of each
// vector within 128-bit lanes, and the VPSHUFB masks that pick the random bits of two
// vectors of elements, for 16-bit codes and for 8-bit codes.
DATA lanes<>+0(SB)/8, $0x0000000100000000
DATA lanes<>+8(SB)/8, $0x0000000900000008
DATA lanes<>+16(SB)/8, $0x0000000300000002
DATA lanes<>+24(SB)/8, $0x0000000b0000000a
DATA lanes<>+32(SB)/8, $0x0000000500000004
DATA lanes<>+40(SB)/8, $0x0000000d0000000c
DATA lanes<>+48(SB)/8, $0x0000000700000006
DATA lanes<>+56(SB)/8, $0x0000000f0000000e
DATA lanes<>+64(SB)/8, $0x8080030280800100
DATA lanes<>+72(SB)/8, $0x8080070680800504
DATA lanes<>+80(SB)/8, $0x80800b0a80800908
DATA lanes<>+88(SB)/8, $0x80800f0e80800d0c
DATA lanes<>+96(SB)/8, $0x8003028080010080
DATA lanes<>+104(SB)/8, $0x8007068080050480
DATA lanes<>+112(SB)/8, $0x800b0a8080090880
DATA lanes<>+120(SB)/8, $0x800f0e80800d0c80
GLOBL lanes<>(SB), RODATA|NOPTR, $128
