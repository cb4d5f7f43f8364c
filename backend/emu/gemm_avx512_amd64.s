//go:build !noasm

#include "textflag.h"

// The accumulators are Z0-Z27, two to a row of the tile; Z28 and Z29 hold a
// row of B, Z30 and Z31 take turns with an element of A. Five pointers reach
// fourteen rows of A: each its own row and, by BX and 2·BX, the two below.

#define STEP(addr, x, c0, c1) \
	VBROADCASTSS addr, x \
	VFMADD231PS  Z28, x, c0 \
	VFMADD231PS  Z29, x, c1

#define LOAD2(i, c0, c1) \
	VMOVUPS (128*i)(DI), c0 \
	VMOVUPS (128*i+64)(DI), c1

#define STORE2(i, c0, c1) \
	VMOVUPS c0, (128*i)(DI) \
	VMOVUPS c1, (128*i+64)(DI)

#define ZERO2(c0, c1) \
	VPXORD c0, c0, c0 \
	VPXORD c1, c1, c1

// func multiply14x32AVX512(k int, a *float32, step, stepK int, b, c *float32, load bool)
TEXT ·multiply14x32AVX512(SB), NOSPLIT, $0-49
	MOVQ k+0(FP), AX
	MOVQ a+8(FP), R8
	MOVQ step+16(FP), BX
	MOVQ stepK+24(FP), CX
	MOVQ b+32(FP), DX
	MOVQ c+40(FP), DI
	SHLQ $2, BX
	SHLQ $2, CX
	LEAQ (BX)(BX*2), SI
	LEAQ (R8)(SI*1), R9
	LEAQ (R9)(SI*1), R10
	LEAQ (R10)(SI*1), R11
	LEAQ (R11)(SI*1), R12

	CMPB load+48(FP), $0
	JEQ  zero14
	LOAD2(0, Z0, Z1)
	LOAD2(1, Z2, Z3)
	LOAD2(2, Z4, Z5)
	LOAD2(3, Z6, Z7)
	LOAD2(4, Z8, Z9)
	LOAD2(5, Z10, Z11)
	LOAD2(6, Z12, Z13)
	LOAD2(7, Z14, Z15)
	LOAD2(8, Z16, Z17)
	LOAD2(9, Z18, Z19)
	LOAD2(10, Z20, Z21)
	LOAD2(11, Z22, Z23)
	LOAD2(12, Z24, Z25)
	LOAD2(13, Z26, Z27)

	// The next tile of accumulators follows this one. A prefetch past the
	// end does nothing.
	MOVQ $1792, R13

prefetch14:
	PREFETCHT0 (DI)(R13*1)
	ADDQ       $64, R13
	CMPQ       R13, $3584
	JLT        prefetch14
	JMP        start14

zero14:
	ZERO2(Z0, Z1)
	ZERO2(Z2, Z3)
	ZERO2(Z4, Z5)
	ZERO2(Z6, Z7)
	ZERO2(Z8, Z9)
	ZERO2(Z10, Z11)
	ZERO2(Z12, Z13)
	ZERO2(Z14, Z15)
	ZERO2(Z16, Z17)
	ZERO2(Z18, Z19)
	ZERO2(Z20, Z21)
	ZERO2(Z22, Z23)
	ZERO2(Z24, Z25)
	ZERO2(Z26, Z27)

start14:
	TESTQ AX, AX
	JZ    store14
	PCALIGN $32

loop14:
	VMOVUPS (DX), Z28
	VMOVUPS 64(DX), Z29
	STEP((R8), Z30, Z0, Z1)
	STEP((R8)(BX*1), Z31, Z2, Z3)
	STEP((R8)(BX*2), Z30, Z4, Z5)
	STEP((R9), Z31, Z6, Z7)
	STEP((R9)(BX*1), Z30, Z8, Z9)
	STEP((R9)(BX*2), Z31, Z10, Z11)
	STEP((R10), Z30, Z12, Z13)
	STEP((R10)(BX*1), Z31, Z14, Z15)
	STEP((R10)(BX*2), Z30, Z16, Z17)
	STEP((R11), Z31, Z18, Z19)
	STEP((R11)(BX*1), Z30, Z20, Z21)
	STEP((R11)(BX*2), Z31, Z22, Z23)
	STEP((R12), Z30, Z24, Z25)
	STEP((R12)(BX*1), Z31, Z26, Z27)
	ADDQ $128, DX
	ADDQ CX, R8
	ADDQ CX, R9
	ADDQ CX, R10
	ADDQ CX, R11
	ADDQ CX, R12
	DECQ AX
	JNZ  loop14

store14:
	STORE2(0, Z0, Z1)
	STORE2(1, Z2, Z3)
	STORE2(2, Z4, Z5)
	STORE2(3, Z6, Z7)
	STORE2(4, Z8, Z9)
	STORE2(5, Z10, Z11)
	STORE2(6, Z12, Z13)
	STORE2(7, Z14, Z15)
	STORE2(8, Z16, Z17)
	STORE2(9, Z18, Z19)
	STORE2(10, Z20, Z21)
	STORE2(11, Z22, Z23)
	STORE2(12, Z24, Z25)
	STORE2(13, Z26, Z27)
	VZEROUPPER
	RET

// func multiply4x32AVX512(k int, a *float32, step, stepK int, b, c *float32, load bool)
TEXT ·multiply4x32AVX512(SB), NOSPLIT, $0-49
	MOVQ k+0(FP), AX
	MOVQ a+8(FP), R8
	MOVQ step+16(FP), BX
	MOVQ stepK+24(FP), CX
	MOVQ b+32(FP), DX
	MOVQ c+40(FP), DI
	SHLQ $2, BX
	SHLQ $2, CX
	LEAQ (R8)(BX*2), R9

	CMPB load+48(FP), $0
	JEQ  zero4
	LOAD2(0, Z0, Z1)
	LOAD2(1, Z2, Z3)
	LOAD2(2, Z4, Z5)
	LOAD2(3, Z6, Z7)
	JMP  start4

zero4:
	ZERO2(Z0, Z1)
	ZERO2(Z2, Z3)
	ZERO2(Z4, Z5)
	ZERO2(Z6, Z7)

start4:
	TESTQ AX, AX
	JZ    store4

loop4:
	VMOVUPS (DX), Z28
	VMOVUPS 64(DX), Z29
	STEP((R8), Z30, Z0, Z1)
	STEP((R8)(BX*1), Z31, Z2, Z3)
	STEP((R9), Z30, Z4, Z5)
	STEP((R9)(BX*1), Z31, Z6, Z7)
	ADDQ $128, DX
	ADDQ CX, R8
	ADDQ CX, R9
	DECQ AX
	JNZ  loop4

store4:
	STORE2(0, Z0, Z1)
	STORE2(1, Z2, Z3)
	STORE2(2, Z4, Z5)
	STORE2(3, Z6, Z7)
	VZEROUPPER
	RET

// PREFETCHW is a NOP on processors of this kind that do not know it.
//
// func prefetchWrite(p unsafe.Pointer, step, rows, bytes int)
TEXT ·prefetchWrite(SB), NOSPLIT, $0-32
	MOVQ p+0(FP), SI
	MOVQ step+8(FP), AX
	MOVQ rows+16(FP), CX
	MOVQ bytes+24(FP), DX
	DECQ DX

prefetchRow:
	BYTE $0x0f; BYTE $0x0d; BYTE $0x0e                // PREFETCHW (SI)
	BYTE $0x0f; BYTE $0x0d; BYTE $0x0c; BYTE $0x16    // PREFETCHW (SI)(DX*1)
	CMPQ DX, $64
	JLT  prefetchNext
	BYTE $0x0f; BYTE $0x0d; BYTE $0x4e; BYTE $0x40    // PREFETCHW 64(SI)

prefetchNext:
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
