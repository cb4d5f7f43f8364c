//go:build !noasm

#include "multiply_avx512_amd64.h"
#include "textflag.h"

// VDPBF16PS c, b, x, given register numbers. It is encoded in bytes because the assembler
// lacks it: EVEX.512.F3.0F38.W0 52 /r (Intel SDM, volume 2). The prefix has the inverted
// upper bits of the register numbers.
#define VDPBF16PS(c, b, x) \
	BYTE $0x62 \
	BYTE $(((~(c)&8)<<4) | ((~(x)&16)<<2) | ((~(x)&8)<<2) | (~(c)&16) | 2) \
	BYTE $(((~(b)&15)<<3) | 6) \
	BYTE $(0x40 | ((~(b)&16)>>1)) \
	BYTE $0x52 \
	BYTE $(0xc0 | (((c)&7)<<3) | ((x)&7))

// Row i has accumulators 2i and 2i+1; its element of A is in Z30 or Z31.
#define DOT(row, addr, x, c0, c1) \
	VBROADCASTSS addr, x \
	VDPBF16PS(2*row, 28, 30+(row&1)) \
	VDPBF16PS(2*row+1, 29, 30+(row&1))

// Registers and prefetches are those of the decoders to FP32. Z28-Z31 are the table of
// BF16: lower bytes, then upper bytes, to which Z27 adds the sign. Z23 permutes codes to
// the order of WIDEN.
#define PAIRS_BEGIN \
	MOVQ dst+0(FP), R9 \
	MOVQ step+8(FP), R8 \
	MOVQ chunk+16(FP), R10 \
	MOVQ src+24(FP), R11 \
	MOVQ ld+32(FP), R12 \
	MOVQ rows+40(FP), R13 \
	SHLQ $2, R8 \
	SHLQ $2, R10

#define TABLE_BEGIN(order) \
	MOVQ         table+56(FP), AX \
	VMOVDQU64    (AX), Z28 \
	VMOVDQU64    64(AX), Z29 \
	VMOVDQU64    128(AX), Z30 \
	VMOVDQU64    192(AX), Z31 \
	MOVL         $0x80808080, AX \
	VPBROADCASTD AX, Z27 \
	VMOVDQU64    order<>(SB), Z23

#define PAIRS_ROW(size) \
	MOVQ       R9, DI \
	MOVQ       R11, SI \
	MOVQ       cols+48(FP), CX \
	LEAQ       (R11)(R12*8), AX \
	PREFETCHT0 (AX) \
	PREFETCHT0 -size(AX)(CX*size)

// SECOND_ROW prefetches for the second row of a pair and sets its mask K2, to zero if there
// is no second row.
#define SECOND_ROW(size, loop) \
	KXORD      K2, K2, K2 \
	ADDQ       R12, AX \
	PREFETCHT0 (AX) \
	PREFETCHT0 -size(AX)(CX*size) \
	CMPQ       R13, $1 \
	JEQ        loop \
	KMOVD      K1, K2

// WIDEN converts the 64 codes in Z0 to 32 words and stores them. Unpacking makes words
// 0-15 from the lower eight codes of each 128 bits.
#define WIDEN \
	VMOVDQA64  Z0, Z1 \
	VPERMI2B   Z29, Z28, Z1 \
	VMOVDQA64  Z0, Z2 \
	VPERMI2B   Z31, Z30, Z2 \
	VPTERNLOGD $0xf8, Z27, Z0, Z2 \
	VPUNPCKLBW Z2, Z1, Z3 \
	VPUNPCKHBW Z2, Z1, Z4 \
	VMOVDQU64  Z3, (DI) \
	VMOVDQU64  Z4, 64(DI) \
	ADDQ       R10, DI

// func multiply14x32BF16(k int, a *float32, step, stepK int, b, c *float32, load bool)
TEXT ·multiply14x32BF16(SB), NOSPLIT, $0-49
	MULTIPLY(ROWS14, STEPS14, DOT)

// func multiply8x32BF16(k int, a *float32, step, stepK int, b, c *float32, load bool)
TEXT ·multiply8x32BF16(SB), NOSPLIT, $0-49
	MULTIPLY(ROWS8, STEPS8, DOT)

// func multiply4x32BF16(k int, a *float32, step, stepK int, b, c *float32, load bool)
TEXT ·multiply4x32BF16(SB), NOSPLIT, $0-49
	MULTIPLY(ROWS4, STEPS4, DOT)

// func decodePairsAlong(dst *float32, step, chunk int, src *uint8, ld, rows, cols int, table *bf16Table)
TEXT ·decodePairsAlong(SB), NOSPLIT, $0-64
	PAIRS_BEGIN
	TABLE_BEGIN(pairsAlong)

row:
	KXNORQ K1, K1, K1
	PAIRS_ROW(1)

loop:
	CMPQ  CX, $64
	JGE   whole
	MOVQ  $-1, AX
	BZHIQ CX, AX, AX
	KMOVQ AX, K1

whole:
	VMOVDQU8.Z (SI), K1, Z0
	VPERMB     Z0, Z23, Z0
	WIDEN
	ADDQ       $64, SI
	SUBQ       $64, CX
	JGT        loop
	ADDQ       R8, R9
	ADDQ       R12, R11
	DECQ       R13
	JNZ        row
	VZEROUPPER
	RET

// func decodePairsDown(dst *float32, step, chunk int, src *uint8, ld, rows, cols int, table *bf16Table)
TEXT ·decodePairsDown(SB), NOSPLIT, $0-64
	PAIRS_BEGIN
	TABLE_BEGIN(pairsDown)

row:
	KXNORD K1, K1, K1
	PAIRS_ROW(1)
	SECOND_ROW(1, loop)

loop:
	CMPQ  CX, $32
	JGE   whole
	MOVL  $-1, AX
	BZHIL CX, AX, AX
	KMOVD AX, K1
	KANDD K1, K2, K2

whole:
	VMOVDQU8.Z (SI), K1, Y0
	VMOVDQU8.Z (SI)(R12*1), K2, Y1
	VPERMT2B   Z1, Z23, Z0
	WIDEN
	ADDQ       $32, SI
	SUBQ       $32, CX
	JGT        loop
	ADDQ       R8, R9
	LEAQ       (R11)(R12*2), R11
	SUBQ       $2, R13
	JGT        row
	VZEROUPPER
	RET

// In memory the two halves of a word have the opposite order.
//
// func decodePairsAlong16(dst *float32, step, chunk int, src *uint16, ld, rows, cols int)
TEXT ·decodePairsAlong16(SB), NOSPLIT, $0-56
	PAIRS_BEGIN
	SHLQ $1, R12

row:
	KXNORQ K1, K1, K1
	PAIRS_ROW(2)

loop:
	CMPQ  CX, $64
	JGE   whole
	MOVQ  $-1, AX
	BZHIQ CX, AX, AX
	KMOVQ AX, K1

whole:
	KSHIFTRQ    $32, K1, K2
	VMOVDQU16.Z (SI), K1, Z0
	VMOVDQU16.Z 64(SI), K2, Z1
	VPROLD      $16, Z0, Z0
	VPROLD      $16, Z1, Z1
	VMOVDQU64   Z0, (DI)
	VMOVDQU64   Z1, 64(DI)
	ADDQ        R10, DI
	ADDQ        $128, SI
	SUBQ        $64, CX
	JGT         loop
	ADDQ        R8, R9
	ADDQ        R12, R11
	DECQ        R13
	JNZ         row
	VZEROUPPER
	RET

// func decodePairsDown16(dst *float32, step, chunk int, src *uint16, ld, rows, cols int)
TEXT ·decodePairsDown16(SB), NOSPLIT, $0-56
	PAIRS_BEGIN
	SHLQ      $1, R12
	VMOVDQU64 wordsDown<>+0(SB), Z22
	VMOVDQU64 wordsDown<>+64(SB), Z23

row:
	KXNORD K1, K1, K1
	PAIRS_ROW(2)
	SECOND_ROW(2, loop)

loop:
	CMPQ  CX, $32
	JGE   whole
	MOVL  $-1, AX
	BZHIL CX, AX, AX
	KMOVD AX, K1
	KANDD K1, K2, K2

whole:
	VMOVDQU16.Z (SI), K1, Z0
	VMOVDQU16.Z (SI)(R12*1), K2, Z1
	VMOVDQA64   Z0, Z2
	VPERMT2W    Z1, Z22, Z0
	VPERMT2W    Z1, Z23, Z2
	VMOVDQU64   Z0, (DI)
	VMOVDQU64   Z2, 64(DI)
	ADDQ        R10, DI
	ADDQ        $64, SI
	SUBQ        $32, CX
	JGT         loop
	ADDQ        R8, R9
	LEAQ        (R11)(R12*2), R11
	SUBQ        $2, R13
	JGT         row
	VZEROUPPER
	RET

// func minBF16AVX512(x *uint16, n int) uint16
TEXT ·minBF16AVX512(SB), NOSPLIT, $0-18
	MOVQ         x+0(FP), SI
	MOVQ         n+8(FP), CX
	MOVL         $0x7fff7fff, AX
	VPBROADCASTD AX, Z2
	VPTERNLOGD   $0xff, Z3, Z3, Z3    // -1
	VMOVDQA64    Z3, Z0

smallest:
	VPANDD  (SI), Z2, Z1
	VPADDW  Z3, Z1, Z1
	VPMINUW Z1, Z0, Z0
	ADDQ    $64, SI
	SUBQ    $32, CX
	JGT     smallest

	VEXTRACTI64X4 $1, Z0, Y1
	VPMINUW       Y1, Y0, Y0
	VEXTRACTI128  $1, Y0, X1
	VPMINUW       X1, X0, X0
	VPHMINPOSUW   X0, X0
	VMOVD         X0, AX
	MOVW          AX, ret+16(FP)
	VZEROUPPER
	RET

// func scalePairsAVX512(words, scales *float32, n int)
TEXT ·scalePairsAVX512(SB), NOSPLIT, $0-24
	MOVQ         words+0(FP), DI
	MOVQ         scales+8(FP), SI
	MOVQ         n+16(FP), CX
	MOVL         $0xffff0000, AX
	VPBROADCASTD AX, Z4
	KXNORW       K1, K1, K1

scale:
	CMPQ  CX, $16
	JGE   whole
	MOVL  $-1, AX
	BZHIL CX, AX, AX
	KMOVW AX, K1

whole:
	VMOVDQU32.Z (DI), K1, Z0
	VMOVDQU32.Z (SI), K1, Z1
	VPSLLD      $16, Z0, Z2
	VPSLLD      $16, Z1, Z3
	VPANDD      Z4, Z0, Z0
	VPANDD      Z4, Z1, Z1
	VMULPS      Z1, Z0, Z0
	VMULPS      Z3, Z2, Z2
	VPSRLD      $16, Z2, Z2
	VPTERNLOGD  $0xec, Z4, Z2, Z0 // lower | upper & mask
	VMOVDQU32   Z0, K1, (DI)
	ADDQ        $64, DI
	ADDQ        $64, SI
	SUBQ        $16, CX
	JGT         scale
	VZEROUPPER
	RET

// Words 0-3, 16-19, 4-7, 20-23, and so on; of each the second code, then the first.
DATA pairsAlong<>+0(SB)/8, $0x0607040502030001
DATA pairsAlong<>+8(SB)/8, $0x2627242522232021
DATA pairsAlong<>+16(SB)/8, $0x0e0f0c0d0a0b0809
DATA pairsAlong<>+24(SB)/8, $0x2e2f2c2d2a2b2829
DATA pairsAlong<>+32(SB)/8, $0x1617141512131011
DATA pairsAlong<>+40(SB)/8, $0x3637343532333031
DATA pairsAlong<>+48(SB)/8, $0x1e1f1c1d1a1b1819
DATA pairsAlong<>+56(SB)/8, $0x3e3f3c3d3a3b3839
GLOBL pairsAlong<>(SB), RODATA|NOPTR, $64

// The same words; of each a code of the second row (indices from 64), then of the first.
DATA pairsDown<>+0(SB)/8, $0x0343024201410040
DATA pairsDown<>+8(SB)/8, $0x1353125211511050
DATA pairsDown<>+16(SB)/8, $0x0747064605450444
DATA pairsDown<>+24(SB)/8, $0x1757165615551454
DATA pairsDown<>+32(SB)/8, $0x0b4b0a4a09490848
DATA pairsDown<>+40(SB)/8, $0x1b5b1a5a19591858
DATA pairsDown<>+48(SB)/8, $0x0f4f0e4e0d4d0c4c
DATA pairsDown<>+56(SB)/8, $0x1f5f1e5e1d5d1c5c
GLOBL pairsDown<>(SB), RODATA|NOPTR, $64

// Of each word an element of the second row (indices from 32), then of the first.
DATA wordsDown<>+0(SB)/8, $0x0001002100000020
DATA wordsDown<>+8(SB)/8, $0x0003002300020022
DATA wordsDown<>+16(SB)/8, $0x0005002500040024
DATA wordsDown<>+24(SB)/8, $0x0007002700060026
DATA wordsDown<>+32(SB)/8, $0x0009002900080028
DATA wordsDown<>+40(SB)/8, $0x000b002b000a002a
DATA wordsDown<>+48(SB)/8, $0x000d002d000c002c
DATA wordsDown<>+56(SB)/8, $0x000f002f000e002e
DATA wordsDown<>+64(SB)/8, $0x0011003100100030
DATA wordsDown<>+72(SB)/8, $0x0013003300120032
DATA wordsDown<>+80(SB)/8, $0x0015003500140034
DATA wordsDown<>+88(SB)/8, $0x0017003700160036
DATA wordsDown<>+96(SB)/8, $0x0019003900180038
DATA wordsDown<>+104(SB)/8, $0x001b003b001a003a
DATA wordsDown<>+112(SB)/8, $0x001d003d001c003c
DATA wordsDown<>+120(SB)/8, $0x001f003f001e003e
GLOBL wordsDown<>(SB), RODATA|NOPTR, $128
