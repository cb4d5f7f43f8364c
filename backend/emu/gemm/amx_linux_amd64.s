//go:build !noasm

#include "textflag.h"

// AMX, the matrix unit: eight tile registers T0-T7 of 16 rows of 64 bytes, TDPBF16PS,
// which adds the matrix product of two BF16 tiles to an FP32 tile, and TDPBSSD, which does so
// with INT8 and I32. The assembler lacks AMX,
// so the instructions are encoded in bytes (Intel SDM, volume 2). Tiles are in use only
// between LDTILECFG and TILERELEASE, inside one function: the Go runtime does not preempt
// assembly, and Linux saves tiles when it interrupts a thread.

#define LDTILECFG_AX     BYTE $0xc4; BYTE $0xe2; BYTE $0x78; BYTE $0x49; BYTE $0x00 // ldtilecfg [rax]
#define TILERELEASE      BYTE $0xc4; BYTE $0xe2; BYTE $0x78; BYTE $0x49; BYTE $0xc0

#define TILEZERO_T0      BYTE $0xc4; BYTE $0xe2; BYTE $0x7b; BYTE $0x49; BYTE $0xc0
#define TILEZERO_T1      BYTE $0xc4; BYTE $0xe2; BYTE $0x7b; BYTE $0x49; BYTE $0xc8
#define TILEZERO_T2      BYTE $0xc4; BYTE $0xe2; BYTE $0x7b; BYTE $0x49; BYTE $0xd0
#define TILEZERO_T3      BYTE $0xc4; BYTE $0xe2; BYTE $0x7b; BYTE $0x49; BYTE $0xd8

// Accumulators are the quarters of a block of 32×32 floats, whose rows are BX bytes apart:
// rows 0 to 15 are at DI, rows 16 to 31 at R14.
#define TILELOADD_C_T0   BYTE $0xc4; BYTE $0xe2; BYTE $0x7b; BYTE $0x4b; BYTE $0x04; BYTE $0x1f              // tileloadd tmm0, [rdi+rbx]
#define TILELOADD_C_T1   BYTE $0xc4; BYTE $0xe2; BYTE $0x7b; BYTE $0x4b; BYTE $0x4c; BYTE $0x1f; BYTE $0x40  // tileloadd tmm1, [rdi+rbx+64]
#define TILELOADD_C_T2   BYTE $0xc4; BYTE $0xc2; BYTE $0x7b; BYTE $0x4b; BYTE $0x14; BYTE $0x1e              // tileloadd tmm2, [r14+rbx]
#define TILELOADD_C_T3   BYTE $0xc4; BYTE $0xc2; BYTE $0x7b; BYTE $0x4b; BYTE $0x5c; BYTE $0x1e; BYTE $0x40  // tileloadd tmm3, [r14+rbx+64]
#define TILESTORED_C_T0  BYTE $0xc4; BYTE $0xe2; BYTE $0x7a; BYTE $0x4b; BYTE $0x04; BYTE $0x1f              // tilestored [rdi+rbx], tmm0
#define TILESTORED_C_T1  BYTE $0xc4; BYTE $0xe2; BYTE $0x7a; BYTE $0x4b; BYTE $0x4c; BYTE $0x1f; BYTE $0x40  // tilestored [rdi+rbx+64], tmm1
#define TILESTORED_C_T2  BYTE $0xc4; BYTE $0xc2; BYTE $0x7a; BYTE $0x4b; BYTE $0x14; BYTE $0x1e              // tilestored [r14+rbx], tmm2
#define TILESTORED_C_T3  BYTE $0xc4; BYTE $0xc2; BYTE $0x7a; BYTE $0x4b; BYTE $0x5c; BYTE $0x1e; BYTE $0x40  // tilestored [r14+rbx+64], tmm3

// Rows of the left operand's tiles are SI bytes apart, those of the right one's, packed, 64,
// in CX.
#define TILELOADD_A_T4   BYTE $0xc4; BYTE $0xc2; BYTE $0x7b; BYTE $0x4b; BYTE $0x24; BYTE $0x30 // tileloadd tmm4, [r8+rsi]
#define TILELOADD_A_T5   BYTE $0xc4; BYTE $0xc2; BYTE $0x7b; BYTE $0x4b; BYTE $0x2c; BYTE $0x31 // tileloadd tmm5, [r9+rsi]
#define TILELOADD_R10_T6 BYTE $0xc4; BYTE $0xc2; BYTE $0x7b; BYTE $0x4b; BYTE $0x34; BYTE $0x0a // tileloadd tmm6, [r10+rcx]
#define TILELOADD_R11_T7 BYTE $0xc4; BYTE $0xc2; BYTE $0x7b; BYTE $0x4b; BYTE $0x3c; BYTE $0x0b // tileloadd tmm7, [r11+rcx]

#define TDPBF16PS_T0     BYTE $0xc4; BYTE $0xe2; BYTE $0x4a; BYTE $0x5c; BYTE $0xc4 // tdpbf16ps tmm0, tmm4, tmm6
#define TDPBF16PS_T1     BYTE $0xc4; BYTE $0xe2; BYTE $0x42; BYTE $0x5c; BYTE $0xcc // tdpbf16ps tmm1, tmm4, tmm7
#define TDPBF16PS_T2     BYTE $0xc4; BYTE $0xe2; BYTE $0x4a; BYTE $0x5c; BYTE $0xd5 // tdpbf16ps tmm2, tmm5, tmm6
#define TDPBF16PS_T3     BYTE $0xc4; BYTE $0xe2; BYTE $0x42; BYTE $0x5c; BYTE $0xdd // tdpbf16ps tmm3, tmm5, tmm7

// In multiplyIntegersAMX, the left operand has rows of CX bytes, a panel of the right one rows
// of 128, in BX.
#define TILELOADD_R8_T4  BYTE $0xc4; BYTE $0xc2; BYTE $0x7b; BYTE $0x4b; BYTE $0x24; BYTE $0x08             // tileloadd tmm4, [r8+rcx]
#define TILELOADD_R8_T5  BYTE $0xc4; BYTE $0xc2; BYTE $0x7b; BYTE $0x4b; BYTE $0x2c; BYTE $0x08             // tileloadd tmm5, [r8+rcx]
#define TILELOADD_LO_T6  BYTE $0xc4; BYTE $0xc2; BYTE $0x7b; BYTE $0x4b; BYTE $0x34; BYTE $0x1a             // tileloadd tmm6, [r10+rbx]
#define TILELOADD_HI_T7  BYTE $0xc4; BYTE $0xc2; BYTE $0x7b; BYTE $0x4b; BYTE $0x7c; BYTE $0x1a; BYTE $0x40 // tileloadd tmm7, [r10+rbx+64]
#define TILELOADD_LO_T2  BYTE $0xc4; BYTE $0xc2; BYTE $0x7b; BYTE $0x4b; BYTE $0x14; BYTE $0x1a             // tileloadd tmm2, [r10+rbx]
#define TILELOADD_HI_T3  BYTE $0xc4; BYTE $0xc2; BYTE $0x7b; BYTE $0x4b; BYTE $0x5c; BYTE $0x1a; BYTE $0x40 // tileloadd tmm3, [r10+rbx+64]

#define TDPBSSD_T0_T4_T6 BYTE $0xc4; BYTE $0xe2; BYTE $0x4b; BYTE $0x5e; BYTE $0xc4 // tdpbssd tmm0, tmm4, tmm6
#define TDPBSSD_T1_T4_T7 BYTE $0xc4; BYTE $0xe2; BYTE $0x43; BYTE $0x5e; BYTE $0xcc // tdpbssd tmm1, tmm4, tmm7
#define TDPBSSD_T0_T5_T2 BYTE $0xc4; BYTE $0xe2; BYTE $0x6b; BYTE $0x5e; BYTE $0xc5 // tdpbssd tmm0, tmm5, tmm2
#define TDPBSSD_T1_T5_T3 BYTE $0xc4; BYTE $0xe2; BYTE $0x63; BYTE $0x5e; BYTE $0xcd // tdpbssd tmm1, tmm5, tmm3

// Palette 1; bytes 16-47: bytes per row of each tile; bytes 48-63: rows of each tile.
DATA amxConfig<>+0(SB)/8, $1
DATA amxConfig<>+8(SB)/8, $0
DATA amxConfig<>+16(SB)/8, $0x0040004000400040
DATA amxConfig<>+24(SB)/8, $0x0040004000400040
DATA amxConfig<>+32(SB)/8, $0
DATA amxConfig<>+40(SB)/8, $0
DATA amxConfig<>+48(SB)/8, $0x1010101010101010
DATA amxConfig<>+56(SB)/8, $0
GLOBL amxConfig<>(SB), RODATA|NOPTR, $64

// func multiplyAMX(steps, blocks int, a *uint16, panelA, rowA, tileA int, b *uint16, panelB int, c *float32, ld, next int, load bool)
TEXT ·multiplyAMX(SB), NOSPLIT, $0-89
	MOVQ steps+0(FP), R12
	MOVQ blocks+8(FP), R13
	MOVQ rowA+32(FP), SI
	MOVQ tileA+40(FP), DX
	MOVQ b+48(FP), R10
	MOVQ c+64(FP), DI
	MOVQ ld+72(FP), BX
	SHLQ $1, SI
	SHLQ $1, DX
	SHLQ $2, BX
	MOVQ $64, CX
	LEAQ amxConfig<>(SB), AX
	LDTILECFG_AX

next:
	MOVQ a+16(FP), R8
	MOVQ panelA+24(FP), AX
	LEAQ (R8)(AX*2), R9
	MOVQ panelB+56(FP), AX
	LEAQ (R10)(AX*2), R11
	MOVQ BX, R14
	SHLQ $4, R14
	ADDQ DI, R14
	CMPB load+88(FP), $0
	JEQ  zero
	TILELOADD_C_T0
	TILELOADD_C_T1
	TILELOADD_C_T2
	TILELOADD_C_T3
	JMP  start

zero:
	TILEZERO_T0
	TILEZERO_T1
	TILEZERO_T2
	TILEZERO_T3

start:
	MOVQ  R12, AX
	TESTQ AX, AX
	JZ    store

step:
	TILELOADD_A_T4
	TILELOADD_R10_T6
	TDPBF16PS_T0
	TILELOADD_R11_T7
	TDPBF16PS_T1
	TILELOADD_A_T5
	TDPBF16PS_T2
	TDPBF16PS_T3
	ADDQ DX, R8
	ADDQ DX, R9
	ADDQ $1024, R10
	ADDQ $1024, R11
	DECQ AX
	JNZ  step

store:
	TILESTORED_C_T0
	TILESTORED_C_T1
	TILESTORED_C_T2
	TILESTORED_C_T3
	MOVQ next+80(FP), AX
	LEAQ (DI)(AX*4), DI
	MOVQ R12, AX
	SHLQ $10, AX
	SUBQ AX, R11                     // the second panel's beginning
	MOVQ panelB+56(FP), AX
	LEAQ (R11)(AX*2), R10
	DECQ R13
	JNZ  next
	TILERELEASE
	RET

// The tiles are those of amxIntegerTiles: T0 and T1 are the sums, T4, T6 and T7 operands with 16
// words along k, and T5, T2 and T3 those with the remaining words.
//
// func multiplyIntegersAMX(tiles *amxTiles, k int, a *float32, step int, b, c *float32, load bool)
TEXT ·multiplyIntegersAMX(SB), NOSPLIT, $0-49
	MOVQ tiles+0(FP), AX
	MOVQ k+8(FP), DX
	MOVQ a+16(FP), R8
	MOVQ step+24(FP), CX
	MOVQ b+32(FP), R10
	MOVQ c+40(FP), DI
	MOVQ $128, BX
	SHLQ $2, CX
	LDTILECFG_AX
	CMPB load+48(FP), $0
	JEQ  zero
	TILELOADD_C_T0
	TILELOADD_C_T1
	JMP  start

zero:
	TILEZERO_T0
	TILEZERO_T1

start:
	SUBQ $16, DX
	JLT  rest

step:
	TILELOADD_R8_T4
	TILELOADD_LO_T6
	TDPBSSD_T0_T4_T6
	TILELOADD_HI_T7
	TDPBSSD_T1_T4_T7
	ADDQ $64, R8
	ADDQ $2048, R10
	SUBQ $16, DX
	JGE  step

rest:
	ADDQ $16, DX
	JZ   store
	TILELOADD_R8_T5
	TILELOADD_LO_T2
	TDPBSSD_T0_T5_T2
	TILELOADD_HI_T3
	TDPBSSD_T1_T5_T3

store:
	TILESTORED_C_T0
	TILESTORED_C_T1
	TILERELEASE
	RET
