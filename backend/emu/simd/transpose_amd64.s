//go:build !noasm

#include "textflag.h"

// A register holds 16 bytes of one row in its lower lane, and of the row eight below in
// its upper lane. Three rounds of unpacking, starting at the element's width, transpose
// eight such registers, Y0-Y7, into Y8-Y15. Each of these holds the first eight rows of
// one column of words, or of two columns of bytes, in its lower lane, and the next eight
// rows in its upper lane.

#define LOAD_ROW(lower, upper, x, y) \
	VMOVDQU     lower, x \
	VINSERTI128 $1, upper, y, y

// SI points to row 0; BX is the step between rows, DX three steps.
#define LOAD_ROWS \
	LEAQ (SI)(BX*4), R9 \
	LEAQ (SI)(BX*8), R10 \
	LEAQ (R9)(BX*8), R11 \
	LOAD_ROW((SI), (R10), X0, Y0) \
	LOAD_ROW((SI)(BX*1), (R10)(BX*1), X1, Y1) \
	LOAD_ROW((SI)(BX*2), (R10)(BX*2), X2, Y2) \
	LOAD_ROW((SI)(DX*1), (R10)(DX*1), X3, Y3) \
	LOAD_ROW((R9), (R11), X4, Y4) \
	LOAD_ROW((R9)(BX*1), (R11)(BX*1), X5, Y5) \
	LOAD_ROW((R9)(BX*2), (R11)(BX*2), X6, Y6) \
	LOAD_ROW((R9)(DX*1), (R11)(DX*1), X7, Y7)

#define UNPACK(lo, hi, a, b, c, d) \
	lo b, a, c \
	hi b, a, d

#define ROUNDS(lo1, hi1, lo2, hi2, lo3, hi3) \
	UNPACK(lo1, hi1, Y0, Y1, Y8, Y9) \
	UNPACK(lo1, hi1, Y2, Y3, Y10, Y11) \
	UNPACK(lo1, hi1, Y4, Y5, Y12, Y13) \
	UNPACK(lo1, hi1, Y6, Y7, Y14, Y15) \
	UNPACK(lo2, hi2, Y8, Y10, Y0, Y1) \
	UNPACK(lo2, hi2, Y9, Y11, Y2, Y3) \
	UNPACK(lo2, hi2, Y12, Y14, Y4, Y5) \
	UNPACK(lo2, hi2, Y13, Y15, Y6, Y7) \
	UNPACK(lo3, hi3, Y0, Y4, Y8, Y9) \
	UNPACK(lo3, hi3, Y1, Y5, Y10, Y11) \
	UNPACK(lo3, hi3, Y2, Y6, Y12, Y13) \
	UNPACK(lo3, hi3, Y3, Y7, Y14, Y15)

// PAIR stages two columns of bytes, COLUMN one of words.
#define PAIR(at, x, y) \
	VPERMQ       $0xd8, y, y \
	VMOVDQU      x, at(DI) \
	VEXTRACTI128 $1, y, (64+at)(DI)

#define COLUMN(at, y) \
	VMOVDQU y, at(DI)

// PREFETCHW (R14)(R11*1), which the assembler lacks: prefetches the line of dst that the
// next group of columns will fill.
#define PREFETCH_LINE \
	BYTE $0x43; BYTE $0x0f; BYTE $0x0d; BYTE $0x0c; BYTE $0x1e

// The kernels complete columns in stage and then copy them to dst: lines of dst that are
// a large power of two apart would be evicted from the cache before their last rows are
// written. R8 and R14 step through the groups of columns in src and dst.
#define TRANSPOSE_BEGIN \
	MOVQ dst+0(FP), R14 \
	MOVQ ld+8(FP), AX \
	MOVQ src+16(FP), R8 \
	MOVQ step+24(FP), BX \
	MOVQ cols+40(FP), CX

#define GROUP_BEGIN \
	MOVQ R8, SI \
	MOVQ stage+48(FP), DI \
	MOVQ rows+32(FP), R12

// ROWS_NEXT advances by sixteen rows; bytes is their width in dst.
#define ROWS_NEXT(bytes) \
	LEAQ (R10)(BX*8), SI \
	ADDQ $bytes, DI \
	SUBQ $16, R12

// func transpose8AVX2(dst *uint8, ld int, src *uint8, step, rows, cols int, stage *[TransposeRows * 16]uint8, stream bool)
TEXT ·transpose8AVX2(SB), NOSPLIT, $0-57
	TRANSPOSE_BEGIN
	LEAQ (BX)(BX*2), DX

group:
	GROUP_BEGIN

rows:
	LOAD_ROWS
	ROUNDS(VPUNPCKLBW, VPUNPCKHBW, VPUNPCKLWD, VPUNPCKHWD, VPUNPCKLDQ, VPUNPCKHDQ)
	PAIR(0, X8, Y8)
	PAIR(128, X9, Y9)
	PAIR(256, X10, Y10)
	PAIR(384, X11, Y11)
	PAIR(512, X12, Y12)
	PAIR(640, X13, Y13)
	PAIR(768, X14, Y14)
	PAIR(896, X15, Y15)
	ROWS_NEXT(16)
	JNZ rows

	MOVQ stage+48(FP), SI
	MOVQ rows+32(FP), R12
	MOVQ $16, R13
	CMPB stream+56(FP), $0
	JNE  streamed
	MOVQ AX, R11
	SHLQ $4, R11

column:
	XORQ R9, R9

line:
	VMOVDQU (SI)(R9*1), X0
	VMOVDQU X0, (R14)(R9*1)
	ADDQ    $16, R9
	CMPQ    R9, R12
	JB      line
	ADDQ    $64, SI
	PREFETCH_LINE
	ADDQ    AX, R14
	DECQ    R13
	JNZ     column

next:
	ADDQ $16, R8
	SUBQ $16, CX
	JNZ  group
	SFENCE
	VZEROUPPER
	RET

streamed:
	VMOVDQU  (SI), Y0
	VMOVDQU  32(SI), Y1
	VMOVNTDQ Y0, (R14)
	VMOVNTDQ Y1, 32(R14)
	ADDQ     $64, SI
	ADDQ     AX, R14
	DECQ     R13
	JNZ      streamed
	JMP      next

// func transpose16AVX2(dst *uint16, ld int, src *uint16, step, rows, cols int, stage *[TransposeRows * 16]uint8)
TEXT ·transpose16AVX2(SB), NOSPLIT, $0-56
	TRANSPOSE_BEGIN
	SHLQ $1, AX
	SHLQ $1, BX
	LEAQ (BX)(BX*2), DX

group:
	GROUP_BEGIN

rows:
	LOAD_ROWS
	ROUNDS(VPUNPCKLWD, VPUNPCKHWD, VPUNPCKLDQ, VPUNPCKHDQ, VPUNPCKLQDQ, VPUNPCKHQDQ)
	COLUMN(0, Y8)
	COLUMN(128, Y9)
	COLUMN(256, Y10)
	COLUMN(384, Y11)
	COLUMN(512, Y12)
	COLUMN(640, Y13)
	COLUMN(768, Y14)
	COLUMN(896, Y15)
	ROWS_NEXT(32)
	JNZ rows

	MOVQ stage+48(FP), SI
	MOVQ rows+32(FP), R12
	SHLQ $1, R12
	MOVQ $8, R13
	MOVQ AX, R11
	SHLQ $3, R11

column:
	XORQ R9, R9

line:
	VMOVDQU (SI)(R9*1), Y0
	VMOVDQU Y0, (R14)(R9*1)
	ADDQ    $32, R9
	CMPQ    R9, R12
	JB      line
	ADDQ    $128, SI
	PREFETCH_LINE
	ADDQ    AX, R14
	DECQ    R13
	JNZ     column

	ADDQ $16, R8
	SUBQ $8, CX
	JNZ  group
	VZEROUPPER
	RET

// Sixteen registers hold sixteen columns of 64 rows: the lanes of Zj have rows j, j+16,
// j+32 and j+48. Four rounds of unpacking bytes of Zj and Zj+8 leave one column in each
// register, a cache line of the result.

// ROW loads the four rows of Zj; R8, R9, R10 and R11 point to them.
#define ROW(x, z) \
	VMOVDQU         (R8), x \
	VBROADCASTI32X4 (R9), K1, z \
	VBROADCASTI32X4 (R10), K2, z \
	VBROADCASTI32X4 (R11), K3, z \
	ADDQ            BX, R8 \
	ADDQ            BX, R9 \
	ADDQ            BX, R10 \
	ADDQ            BX, R11

#define ZIP(a, b, lo, hi) \
	VPUNPCKLBW b, a, lo \
	VPUNPCKHBW b, a, hi

#define ROUND_UP \
	ZIP(Z0, Z8, Z16, Z17) \
	ZIP(Z1, Z9, Z18, Z19) \
	ZIP(Z2, Z10, Z20, Z21) \
	ZIP(Z3, Z11, Z22, Z23) \
	ZIP(Z4, Z12, Z24, Z25) \
	ZIP(Z5, Z13, Z26, Z27) \
	ZIP(Z6, Z14, Z28, Z29) \
	ZIP(Z7, Z15, Z30, Z31)

#define ROUND_DOWN \
	ZIP(Z16, Z24, Z0, Z1) \
	ZIP(Z17, Z25, Z2, Z3) \
	ZIP(Z18, Z26, Z4, Z5) \
	ZIP(Z19, Z27, Z6, Z7) \
	ZIP(Z20, Z28, Z8, Z9) \
	ZIP(Z21, Z29, Z10, Z11) \
	ZIP(Z22, Z30, Z12, Z13) \
	ZIP(Z23, Z31, Z14, Z15)

#define COLUMNS(store) \
	store(Z0) \
	store(Z1) \
	store(Z2) \
	store(Z3) \
	store(Z4) \
	store(Z5) \
	store(Z6) \
	store(Z7) \
	store(Z8) \
	store(Z9) \
	store(Z10) \
	store(Z11) \
	store(Z12) \
	store(Z13) \
	store(Z14) \
	store(Z15)

#define STORE(z) \
	VMOVDQU64 z, (R14) \
	ADDQ      AX, R14

#define STREAM(z) \
	VMOVNTDQ z, (R14) \
	ADDQ     AX, R14

// func transpose8AVX512(dst *uint8, ld int, src *uint8, step, rows, cols int, stream bool)
TEXT ·transpose8AVX512(SB), NOSPLIT, $0-49
	MOVQ  dst+0(FP), R13
	MOVQ  ld+8(FP), AX
	MOVQ  src+16(FP), SI
	MOVQ  step+24(FP), BX
	MOVQ  cols+40(FP), CX
	MOVL  $0x00f0, DX
	KMOVW DX, K1
	MOVL  $0x0f00, DX
	KMOVW DX, K2
	MOVL  $0xf000, DX
	KMOVW DX, K3
	MOVQ  BX, DX
	SHLQ  $4, DX

// A group of columns stores all its lines before the next group begins: the lines of
// sixteen columns fill the same DRAM rows.
group:
	MOVQ rows+32(FP), R12
	MOVQ SI, R8
	MOVQ R13, DI

lines:
	MOVQ DI, R14
	LEAQ (R8)(DX*1), R9
	LEAQ (R8)(DX*2), R10
	LEAQ (R9)(DX*2), R11
	ROW(X0, Z0)
	ROW(X1, Z1)
	ROW(X2, Z2)
	ROW(X3, Z3)
	ROW(X4, Z4)
	ROW(X5, Z5)
	ROW(X6, Z6)
	ROW(X7, Z7)
	ROW(X8, Z8)
	ROW(X9, Z9)
	ROW(X10, Z10)
	ROW(X11, Z11)
	ROW(X12, Z12)
	ROW(X13, Z13)
	ROW(X14, Z14)
	ROW(X15, Z15)
	MOVQ R11, R8
	ROUND_UP
	ROUND_DOWN
	ROUND_UP
	ROUND_DOWN
	CMPB stream+48(FP), $0
	JNE  streamed
	COLUMNS(STORE)

next:
	ADDQ $64, DI
	SUBQ $64, R12
	JNZ  lines
	ADDQ $16, SI
	MOVQ AX, R14
	SHLQ $4, R14
	ADDQ R14, R13
	SUBQ $16, CX
	JNZ  group
	SFENCE
	VZEROUPPER
	RET

streamed:
	COLUMNS(STREAM)
	JMP  next
