//go:build !noasm

#include "multiply_avx512_amd64.h"
#include "textflag.h"

#define FMA(row, addr, x, c0, c1) \
	VBROADCASTSS addr, x \
	VFMADD231PS  Z28, x, c0 \
	VFMADD231PS  Z29, x, c1

// func multiply14x32AVX512(k int, a *float32, step, stepK int, b, c *float32, load bool)
TEXT ·multiply14x32AVX512(SB), NOSPLIT, $0-49
	MULTIPLY(ROWS14, STEPS14, FMA)

// func multiply8x32AVX512(k int, a *float32, step, stepK int, b, c *float32, load bool)
TEXT ·multiply8x32AVX512(SB), NOSPLIT, $0-49
	MULTIPLY(ROWS8, STEPS8, FMA)

// func multiply4x32AVX512(k int, a *float32, step, stepK int, b, c *float32, load bool)
TEXT ·multiply4x32AVX512(SB), NOSPLIT, $0-49
	MULTIPLY(ROWS4, STEPS4, FMA)

// AVX-512 processors without PREFETCHW execute it as a NOP.
//
// func prefetchWrite(p unsafe.Pointer, step, rows, bytes int)
TEXT ·prefetchWrite(SB), NOSPLIT, $0-32
	MOVQ p+0(FP), SI
	MOVQ step+8(FP), AX
	MOVQ rows+16(FP), CX
	MOVQ bytes+24(FP), DX
	DECQ DX

prefetchRow:
	LEAQ (SI)(DX*1), R8
	MOVQ SI, DI
	ANDQ $-64, DI

prefetchLine:
	BYTE $0x0f; BYTE $0x0d; BYTE $0x0f    // PREFETCHW (DI)
	ADDQ $64, DI
	CMPQ DI, R8
	JLE  prefetchLine
	ADDQ AX, SI
	DECQ CX
	JNZ  prefetchRow
	RET

// func addScaled32AVX512(acc, part *float32, rows int, sa, sb *float32, first bool)
TEXT ·addScaled32AVX512(SB), NOSPLIT, $0-41
	MOVQ    acc+0(FP), DI
	MOVQ    part+8(FP), SI
	MOVQ    rows+16(FP), CX
	MOVQ    sa+24(FP), R8
	MOVQ    sb+32(FP), R9
	MOVBLZX first+40(FP), AX
	VMOVUPS (R9), Z4
	VMOVUPS 64(R9), Z5

addRow:
	VBROADCASTSS (R8), Z0
	VMULPS       Z0, Z4, Z2
	VMULPS       Z0, Z5, Z3
	VMULPS       (SI), Z2, Z2
	VMULPS       64(SI), Z3, Z3
	TESTL        AX, AX
	JNZ          addStore
	VADDPS       (DI), Z2, Z2
	VADDPS       64(DI), Z3, Z3

addStore:
	VMOVUPS Z2, (DI)
	VMOVUPS Z3, 64(DI)
	ADDQ    $128, DI
	ADDQ    $128, SI
	ADDQ    $4, R8
	DECQ    CX
	JNZ     addRow
	VZEROUPPER
	RET
