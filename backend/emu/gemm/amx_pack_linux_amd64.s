//go:build !noasm

#include "transpose_amd64.h"
#include "textflag.h"

// A tile holds 16×16 pairs of neighbours in k. The pairs of a wide block, 16 rows of 32
// elements, are contiguous in memory; a pair of a tall block, 32 rows of 16, has one element
// from each of two rows. Where the tile needs the transpose of the pairs, they are
// transposed in registers.
//
// DI walks over the tiles of dst, R8 is its step in bytes; SI walks over the
// blocks of src, R9 is its row in bytes, R12 three of them; CX counts blocks.

#define PACK_BEGIN(log) \
	MOVQ dst+0(FP), DI \
	MOVQ step+8(FP), R8 \
	MOVQ src+16(FP), SI \
	MOVQ ld+24(FP), R9 \
	MOVQ count+32(FP), CX \
	SHLQ $1, R8 \
	SHLQ $log, R9 \
	LEAQ (R9)(R9*2), R12

// The next block of src is bytes to the right.
#define PACK_END(bytes) \
	ADDQ $bytes, SI \
	ADDQ R8, DI \
	DECQ CX \
	JNZ  block \
	VZEROUPPER \
	RET

// FP8 codes are looked up by their lower seven bits in two tables: Z28 and Z29 hold the
// lower bytes of BF16, Z30 and Z31 the upper bytes, to which the sign is added (mask Z27).
#define TABLE_BEGIN \
	MOVQ         table+40(FP), AX \
	VMOVDQU64    (AX), Z28 \
	VMOVDQU64    64(AX), Z29 \
	VMOVDQU64    128(AX), Z30 \
	VMOVDQU64    192(AX), Z31 \
	MOVL         $0x80808080, AX \
	VPBROADCASTD AX, Z27

// WIDEN converts 64 codes to rows i and i+8 of a tile. Each 128 bits of z hold eight codes
// of row i, then eight of row i+8.
#define WIDEN(i, z) \
	VMOVDQA64  z, Z24 \
	VPERMI2B   Z29, Z28, Z24 \
	VMOVDQA64  z, Z25 \
	VPERMI2B   Z31, Z30, Z25 \
	VPTERNLOGD $0xf8, Z27, z, Z25 \
	VPUNPCKLBW Z25, Z24, Z26 \
	VMOVDQU64  Z26, (64*i)(DI) \
	VPUNPCKHBW Z25, Z24, Z26 \
	VMOVDQU64  Z26, (64*i+512)(DI)

#define WIDEN8 \
	WIDEN(0, Z0) \
	WIDEN(1, Z1) \
	WIDEN(2, Z2) \
	WIDEN(3, Z3) \
	WIDEN(4, Z4) \
	WIDEN(5, Z5) \
	WIDEN(6, Z6) \
	WIDEN(7, Z7)

// Z0-Z7: row i of 32 bytes and row i+8.
#define LOAD_WIDE8(lo, hi, z, y) \
	VMOVDQU       lo, y \
	VINSERTI64X4 $1, hi, z, z

#define WIDE8 \
	LEAQ (SI)(R9*8), R11 \
	LEAQ (SI)(R9*4), R10 \
	LEAQ (R11)(R9*4), R13 \
	LOAD_WIDE8((SI), (R11), Z0, Y0) \
	LOAD_WIDE8((SI)(R9*1), (R11)(R9*1), Z1, Y1) \
	LOAD_WIDE8((SI)(R9*2), (R11)(R9*2), Z2, Y2) \
	LOAD_WIDE8((SI)(R12*1), (R11)(R12*1), Z3, Y3) \
	LOAD_WIDE8((R10), (R13), Z4, Y4) \
	LOAD_WIDE8((R10)(R9*1), (R13)(R9*1), Z5, Y5) \
	LOAD_WIDE8((R10)(R9*2), (R13)(R9*2), Z6, Y6) \
	LOAD_WIDE8((R10)(R12*1), (R13)(R12*1), Z7, Y7)

// Z0-Z7: rows 2i and 2i+1 of 16 bytes, and rows 2i+16 and 2i+17.
#define LOAD_TALL8(a, b, c, d, z, y, x) \
	VMOVDQU      a, x \
	VINSERTI128  $1, b, y, y \
	VINSERTI32X4 $2, c, z, z \
	VINSERTI32X4 $3, d, z, z

#define TALL8 \
	MOVQ R9, R13 \
	SHLQ $4, R13 \
	ADDQ SI, R13 \
	MOVQ SI, R10 \
	LOAD_TALL8((R10), (R10)(R9*1), (R13), (R13)(R9*1), Z0, Y0, X0) \
	LOAD_TALL8((R10)(R9*2), (R10)(R12*1), (R13)(R9*2), (R13)(R12*1), Z1, Y1, X1) \
	LEAQ (R10)(R9*4), R10 \
	LEAQ (R13)(R9*4), R13 \
	LOAD_TALL8((R10), (R10)(R9*1), (R13), (R13)(R9*1), Z2, Y2, X2) \
	LOAD_TALL8((R10)(R9*2), (R10)(R12*1), (R13)(R9*2), (R13)(R12*1), Z3, Y3, X3) \
	LEAQ (R10)(R9*4), R10 \
	LEAQ (R13)(R9*4), R13 \
	LOAD_TALL8((R10), (R10)(R9*1), (R13), (R13)(R9*1), Z4, Y4, X4) \
	LOAD_TALL8((R10)(R9*2), (R10)(R12*1), (R13)(R9*2), (R13)(R12*1), Z5, Y5, X5) \
	LEAQ (R10)(R9*4), R10 \
	LEAQ (R13)(R9*4), R13 \
	LOAD_TALL8((R10), (R10)(R9*1), (R13), (R13)(R9*1), Z6, Y6, X6) \
	LOAD_TALL8((R10)(R9*2), (R10)(R12*1), (R13)(R9*2), (R13)(R12*1), Z7, Y7, X7)

#define SHUFFLE8(index) \
	VPERMB Z0, index, Z0 \
	VPERMB Z1, index, Z1 \
	VPERMB Z2, index, Z2 \
	VPERMB Z3, index, Z3 \
	VPERMB Z4, index, Z4 \
	VPERMB Z5, index, Z5 \
	VPERMB Z6, index, Z6 \
	VPERMB Z7, index, Z7

// TRANSPOSE8 transposes 16×16 words, rows i and i+8 in Zi, and arranges them for
// WIDEN: 128 bits of the result are half of rows i and i+8 before VPERMQ.
#define WORDS(a, b, lo, hi) \
	VPUNPCKLWD b, a, lo \
	VPUNPCKHWD b, a, hi

#define QUADS(a, b, lo, hi) \
	VPUNPCKLQDQ b, a, lo \
	VPUNPCKHQDQ b, a, hi \
	VPERMQ      $0xd8, lo, lo \
	VPERMQ      $0xd8, hi, hi

#define TRANSPOSE8 \
	WORDS(Z0, Z1, Z8, Z9) \
	WORDS(Z2, Z3, Z10, Z11) \
	WORDS(Z4, Z5, Z12, Z13) \
	WORDS(Z6, Z7, Z14, Z15) \
	PAIRS(Z8, Z10, Z16, Z17) \
	PAIRS(Z9, Z11, Z18, Z19) \
	PAIRS(Z12, Z14, Z20, Z21) \
	PAIRS(Z13, Z15, Z22, Z23) \
	QUADS(Z16, Z20, Z0, Z1) \
	QUADS(Z17, Z21, Z2, Z3) \
	QUADS(Z18, Z22, Z4, Z5) \
	QUADS(Z19, Z23, Z6, Z7)

// func packWide8AMX(dst *uint16, step int, src *uint8, ld, count int, table *bf16Table)
TEXT ·packWide8AMX(SB), NOSPLIT, $0-48
	PACK_BEGIN(0)
	TABLE_BEGIN
	VMOVDQU64 amxRows<>(SB), Z23

block:
	WIDE8
	SHUFFLE8(Z23)
	WIDEN8
	PACK_END(32)

// func packWideTransposed8AMX(dst *uint16, step int, src *uint8, ld, count int, table *bf16Table)
TEXT ·packWideTransposed8AMX(SB), NOSPLIT, $0-48
	PACK_BEGIN(0)
	TABLE_BEGIN

block:
	WIDE8
	TRANSPOSE8
	WIDEN8
	PACK_END(32)

// func packTall8AMX(dst *uint16, step int, src *uint8, ld, count int, table *bf16Table)
TEXT ·packTall8AMX(SB), NOSPLIT, $0-48
	PACK_BEGIN(0)
	TABLE_BEGIN
	VMOVDQU64 amxPairsByRows<>(SB), Z23

block:
	TALL8
	SHUFFLE8(Z23)
	WIDEN8
	PACK_END(16)

// func packTallTransposed8AMX(dst *uint16, step int, src *uint8, ld, count int, table *bf16Table)
TEXT ·packTallTransposed8AMX(SB), NOSPLIT, $0-48
	PACK_BEGIN(0)
	TABLE_BEGIN

block:
	VMOVDQU64 amxPairs<>(SB), Z23
	TALL8
	SHUFFLE8(Z23)
	TRANSPOSE8
	WIDEN8
	PACK_END(16)

// BF16: Z0-Z15 are the rows of pairs.

#define LOAD_WIDE16(base, a, b, c, d) \
	VMOVDQU64 (base), a \
	VMOVDQU64 (base)(R9*1), b \
	VMOVDQU64 (base)(R9*2), c \
	VMOVDQU64 (base)(R12*1), d

#define WIDE16 \
	MOVQ SI, R10 \
	LOAD_WIDE16(R10, Z0, Z1, Z2, Z3) \
	LEAQ (R10)(R9*4), R10 \
	LOAD_WIDE16(R10, Z4, Z5, Z6, Z7) \
	LEAQ (R10)(R9*4), R10 \
	LOAD_WIDE16(R10, Z8, Z9, Z10, Z11) \
	LEAQ (R10)(R9*4), R10 \
	LOAD_WIDE16(R10, Z12, Z13, Z14, Z15)

// Two rows of 16 words each, interleaved by the index in Z31.
#define LOAD_TALL16(a, ya, b, yb) \
	VMOVDQU      (R10), ya \
	VINSERTI64X4 $1, (R10)(R9*1), a, a \
	VMOVDQU      (R10)(R9*2), yb \
	VINSERTI64X4 $1, (R10)(R12*1), b, b \
	VPERMW       a, Z31, a \
	VPERMW       b, Z31, b \
	LEAQ         (R10)(R9*4), R10

#define TALL16 \
	MOVQ SI, R10 \
	LOAD_TALL16(Z0, Y0, Z1, Y1) \
	LOAD_TALL16(Z2, Y2, Z3, Y3) \
	LOAD_TALL16(Z4, Y4, Z5, Y5) \
	LOAD_TALL16(Z6, Y6, Z7, Y7) \
	LOAD_TALL16(Z8, Y8, Z9, Y9) \
	LOAD_TALL16(Z10, Y10, Z11, Y11) \
	LOAD_TALL16(Z12, Y12, Z13, Y13) \
	LOAD_TALL16(Z14, Y14, Z15, Y15)

#define STORE16 \
	VMOVDQU64 Z0, (DI) \
	VMOVDQU64 Z1, 64(DI) \
	VMOVDQU64 Z2, 128(DI) \
	VMOVDQU64 Z3, 192(DI) \
	VMOVDQU64 Z4, 256(DI) \
	VMOVDQU64 Z5, 320(DI) \
	VMOVDQU64 Z6, 384(DI) \
	VMOVDQU64 Z7, 448(DI) \
	VMOVDQU64 Z8, 512(DI) \
	VMOVDQU64 Z9, 576(DI) \
	VMOVDQU64 Z10, 640(DI) \
	VMOVDQU64 Z11, 704(DI) \
	VMOVDQU64 Z12, 768(DI) \
	VMOVDQU64 Z13, 832(DI) \
	VMOVDQU64 Z14, 896(DI) \
	VMOVDQU64 Z15, 960(DI)

// func packWide16AMX(dst *uint16, step int, src *uint16, ld, count int)
TEXT ·packWide16AMX(SB), NOSPLIT, $0-40
	PACK_BEGIN(1)

block:
	WIDE16
	STORE16
	PACK_END(64)

// func packWideTransposed16AMX(dst *uint16, step int, src *uint16, ld, count int)
TEXT ·packWideTransposed16AMX(SB), NOSPLIT, $0-40
	PACK_BEGIN(1)

block:
	WIDE16
	TRANSPOSE16
	STORE16
	PACK_END(64)

// func packTall16AMX(dst *uint16, step int, src *uint16, ld, count int)
TEXT ·packTall16AMX(SB), NOSPLIT, $0-40
	PACK_BEGIN(1)
	VMOVDQU64 amxWordPairs<>(SB), Z31

block:
	TALL16
	STORE16
	PACK_END(32)

// func packTallTransposed16AMX(dst *uint16, step int, src *uint16, ld, count int)
TEXT ·packTallTransposed16AMX(SB), NOSPLIT, $0-40
	PACK_BEGIN(1)

block:
	VMOVDQU64 amxWordPairs<>(SB), Z31
	TALL16
	TRANSPOSE16
	STORE16
	PACK_END(32)

// Two rows of 32, alternating by eight: the order of WIDEN.
DATA amxRows<>+0(SB)/8, $0x0706050403020100
DATA amxRows<>+8(SB)/8, $0x2726252423222120
DATA amxRows<>+16(SB)/8, $0x0f0e0d0c0b0a0908
DATA amxRows<>+24(SB)/8, $0x2f2e2d2c2b2a2928
DATA amxRows<>+32(SB)/8, $0x1716151413121110
DATA amxRows<>+40(SB)/8, $0x3736353433323130
DATA amxRows<>+48(SB)/8, $0x1f1e1d1c1b1a1918
DATA amxRows<>+56(SB)/8, $0x3f3e3d3c3b3a3938
GLOBL amxRows<>(SB), RODATA|NOPTR, $64

// Two rows of 16 become one of 16 pairs, twice.
DATA amxPairs<>+0(SB)/8, $0x1303120211011000
DATA amxPairs<>+8(SB)/8, $0x1707160615051404
DATA amxPairs<>+16(SB)/8, $0x1b0b1a0a19091808
DATA amxPairs<>+24(SB)/8, $0x1f0f1e0e1d0d1c0c
DATA amxPairs<>+32(SB)/8, $0x3323322231213020
DATA amxPairs<>+40(SB)/8, $0x3727362635253424
DATA amxPairs<>+48(SB)/8, $0x3b2b3a2a39293828
DATA amxPairs<>+56(SB)/8, $0x3f2f3e2e3d2d3c2c
GLOBL amxPairs<>(SB), RODATA|NOPTR, $64

// amxPairs, then amxRows.
DATA amxPairsByRows<>+0(SB)/8, $0x1303120211011000
DATA amxPairsByRows<>+8(SB)/8, $0x3323322231213020
DATA amxPairsByRows<>+16(SB)/8, $0x1707160615051404
DATA amxPairsByRows<>+24(SB)/8, $0x3727362635253424
DATA amxPairsByRows<>+32(SB)/8, $0x1b0b1a0a19091808
DATA amxPairsByRows<>+40(SB)/8, $0x3b2b3a2a39293828
DATA amxPairsByRows<>+48(SB)/8, $0x1f0f1e0e1d0d1c0c
DATA amxPairsByRows<>+56(SB)/8, $0x3f2f3e2e3d2d3c2c
GLOBL amxPairsByRows<>(SB), RODATA|NOPTR, $64

// Two rows of 16 words become one of 16 pairs.
DATA amxWordPairs<>+0(SB)/8, $0x0011000100100000
DATA amxWordPairs<>+8(SB)/8, $0x0013000300120002
DATA amxWordPairs<>+16(SB)/8, $0x0015000500140004
DATA amxWordPairs<>+24(SB)/8, $0x0017000700160006
DATA amxWordPairs<>+32(SB)/8, $0x0019000900180008
DATA amxWordPairs<>+40(SB)/8, $0x001b000b001a000a
DATA amxWordPairs<>+48(SB)/8, $0x001d000d001c000c
DATA amxWordPairs<>+56(SB)/8, $0x001f000f001e000e
GLOBL amxWordPairs<>(SB), RODATA|NOPTR, $64

