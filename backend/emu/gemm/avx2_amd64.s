//go:build !noasm

#include "go_asm.h"
#include "textflag.h"

// The accumulators are Y0-Y11, two per row of the tile; Y12 and Y13 hold a row of B, Y14
// and Y15 alternately an element of A.

#define STEP(addr, x, c0, c1) \
	VBROADCASTSS addr, x \
	VFMADD231PS  Y12, x, c0 \
	VFMADD231PS  Y13, x, c1

#define LOAD2(i, c0, c1) \
	VMOVUPS (64*i)(DI), c0 \
	VMOVUPS (64*i+32)(DI), c1

#define STORE2(i, c0, c1) \
	VMOVUPS c0, (64*i)(DI) \
	VMOVUPS c1, (64*i+32)(DI)

#define ZERO2(c0, c1) \
	VXORPS c0, c0, c0 \
	VXORPS c1, c1, c1

// R10 and DI walk over the tiles of six rows, R13 over their rows; R11 is b.
//
// func multiply6x16AVX2(k, rows int, a *float32, step, stepK int, b, c *float32, load bool)
TEXT ·multiply6x16AVX2(SB), NOSPLIT, $0-57
	MOVQ    rows+8(FP), R13
	MOVQ    a+16(FP), R10
	MOVQ    step+24(FP), BX
	MOVQ    stepK+32(FP), CX
	MOVQ    b+40(FP), R11
	MOVQ    c+48(FP), DI
	MOVBLZX load+56(FP), R12
	SHLQ    $2, BX
	SHLQ    $2, CX
	LEAQ    (BX)(BX*2), SI

tile:
	MOVQ  k+0(FP), AX
	MOVQ  R11, DX
	MOVQ  R10, R8
	LEAQ  (R10)(SI*1), R9
	TESTL R12, R12
	JEQ   zero
	LOAD2(0, Y0, Y1)
	LOAD2(1, Y2, Y3)
	LOAD2(2, Y4, Y5)
	LOAD2(3, Y6, Y7)
	LOAD2(4, Y8, Y9)
	LOAD2(5, Y10, Y11)
	JMP start

zero:
	ZERO2(Y0, Y1)
	ZERO2(Y2, Y3)
	ZERO2(Y4, Y5)
	ZERO2(Y6, Y7)
	ZERO2(Y8, Y9)
	ZERO2(Y10, Y11)

start:
	TESTQ AX, AX
	JZ    store
	PCALIGN $64

loop:
	VMOVUPS (DX), Y12
	VMOVUPS 32(DX), Y13
	STEP((R8), Y14, Y0, Y1)
	STEP((R8)(BX*1), Y15, Y2, Y3)
	STEP((R8)(BX*2), Y14, Y4, Y5)
	STEP((R9), Y15, Y6, Y7)
	STEP((R9)(BX*1), Y14, Y8, Y9)
	STEP((R9)(BX*2), Y15, Y10, Y11)
	ADDQ $64, DX
	ADDQ CX, R8
	ADDQ CX, R9
	DECQ AX
	JNZ  loop

store:
	STORE2(0, Y0, Y1)
	STORE2(1, Y2, Y3)
	STORE2(2, Y4, Y5)
	STORE2(3, Y6, Y7)
	STORE2(4, Y8, Y9)
	STORE2(5, Y10, Y11)
	ADDQ $384, DI
	LEAQ (R10)(SI*2), R10
	SUBQ $6, R13
	JGT  tile
	VZEROUPPER
	RET

// The epilogue of finishRows for whole tiles of 16 columns and F32 or BF16 outputs, row by
// row. A missing column scale is a vector of ones.
//
// SI acc; R8 row scales or 0; R9 t; R10 rows left; R11 residual, R12 its step
// in bytes, BX its format; DI out, R13 its step, DX its format.
//
// func finish6x16AVX2(acc *float32, t *tileOut)
TEXT ·finish6x16AVX2(SB), NOSPLIT, $0-16
	MOVQ acc+0(FP), SI
	MOVQ t+8(FP), R9

	VBROADCASTSS tileOut_alpha(R9), Y10
	MOVL         $0x3f800000, AX
	VMOVD        AX, X11
	VPBROADCASTD X11, Y11
	VMOVAPS      Y11, Y12
	MOVQ         tileOut_colScale(R9), CX
	TESTQ        CX, CX
	JZ           columns
	MOVQ         tileOut_j(R9), AX
	VMOVUPS      (CX)(AX*4), Y11
	VMOVUPS      32(CX)(AX*4), Y12

columns:
	VPCMPEQD     Y13, Y13, Y13
	VPSRLD       $1, Y13, Y13       // all but the sign
	VPBROADCASTD tileOut_amax(R9), Y14
	MOVL         $0x7fff, AX
	VMOVD        AX, X9
	VPBROADCASTD X9, Y9
	MOVL         $1, AX
	VMOVD        AX, X8
	VPBROADCASTD X8, Y8
	MOVQ         tileOut_rows(R9), R10
	MOVQ         tileOut_rowScale(R9), R8
	TESTQ        R8, R8
	JZ           rows
	MOVQ         tileOut_i(R9), AX
	LEAQ         (R8)(AX*4), R8

rows:
	MOVQ    (tileOut_residual+matrix_LD)(R9), R12
	MOVQ    R12, AX
	IMULQ   tileOut_i(R9), AX
	ADDQ    tileOut_j(R9), AX
	MOVBLZX (tileOut_residual+matrix_DType)(R9), BX
	CMPL    BX, $const_asmBF16
	JEQ     residualBF16
	MOVQ    (tileOut_residual+matrix_F32)(R9), R11
	LEAQ    (R11)(AX*4), R11
	SHLQ    $2, R12
	JMP     residual

residualBF16:
	MOVQ (tileOut_residual+matrix_U16)(R9), R11
	LEAQ (R11)(AX*2), R11
	SHLQ $1, R12

residual:
	MOVQ    (tileOut_out+matrix_LD)(R9), R13
	MOVQ    R13, DI
	IMULQ   tileOut_i(R9), DI
	ADDQ    tileOut_j(R9), DI
	MOVBLZX (tileOut_out+matrix_DType)(R9), DX
	CMPL    DX, $const_asmBF16
	JEQ     outBF16
	SHLQ    $2, DI
	ADDQ    (tileOut_out+matrix_F32)(R9), DI
	SHLQ    $2, R13
	JMP     row

outBF16:
	SHLQ $1, DI
	ADDQ (tileOut_out+matrix_U16)(R9), DI
	SHLQ $1, R13

row:
	VMULPS (SI), Y10, Y0
	VMULPS 32(SI), Y10, Y1
	TESTQ  R8, R8
	JZ     scaled
	VBROADCASTSS (R8), Y2
	VMULPS Y2, Y0, Y0
	VMULPS Y2, Y1, Y1
	ADDQ   $4, R8

scaled:
	VMULPS Y11, Y0, Y0
	VMULPS Y12, Y1, Y1
	TESTL  BX, BX
	JZ     added
	CMPL   BX, $const_asmBF16
	JEQ    addBF16
	VMOVUPS (R11), Y2
	VMOVUPS 32(R11), Y3
	JMP    add

addBF16:
	VPMOVZXWD (R11), Y2
	VPMOVZXWD 16(R11), Y3
	VPSLLD    $16, Y2, Y2
	VPSLLD    $16, Y3, Y3

add:
	VADDPS Y2, Y0, Y0
	VADDPS Y3, Y1, Y1
	ADDQ   R12, R11

added:
	VPAND   Y13, Y0, Y2
	VPAND   Y13, Y1, Y3
	VPMAXUD Y2, Y14, Y14
	VPMAXUD Y3, Y14, Y14
	CMPL    DX, $const_asmBF16
	JNE     storeF32

	VCMPPS    $3, Y0, Y0, Y4    // NaN
	VCMPPS    $3, Y1, Y1, Y5
	VPSRLD    $16, Y0, Y2
	VPSRLD    $16, Y1, Y3
	VPAND     Y8, Y2, Y2
	VPAND     Y8, Y3, Y3
	VPADDD    Y9, Y2, Y2
	VPADDD    Y9, Y3, Y3
	VPADDD    Y0, Y2, Y2
	VPADDD    Y1, Y3, Y3
	VPSRLD    $16, Y2, Y2
	VPSRLD    $16, Y3, Y3
	VBLENDVPS Y4, Y9, Y2, Y2
	VBLENDVPS Y5, Y9, Y3, Y3
	VPACKUSDW Y3, Y2, Y2
	VPERMQ    $0xd8, Y2, Y2
	VMOVDQU   Y2, (DI)
	JMP       next

storeF32:
	VMOVUPS Y0, (DI)
	VMOVUPS Y1, 32(DI)

next:
	ADDQ R13, DI
	ADDQ $64, SI
	DECQ R10
	JNZ  row

	// Reduce the maxima to one.
	VEXTRACTI128 $1, Y14, X15
	VPMAXUD      X15, X14, X14
	VPSHUFD      $0x4e, X14, X15
	VPMAXUD      X15, X14, X14
	VPSHUFD      $0xb1, X14, X15
	VPMAXUD      X15, X14, X14
	VMOVD        X14, tileOut_amax(R9)
	VZEROUPPER
	RET

// func addScaled16AVX2(acc, part *float32, rows int, sa, sb *float32, first bool)
TEXT ·addScaled16AVX2(SB), NOSPLIT, $0-41
	MOVQ    acc+0(FP), DI
	MOVQ    part+8(FP), SI
	MOVQ    rows+16(FP), CX
	MOVQ    sa+24(FP), R8
	MOVQ    sb+32(FP), R9
	MOVBLZX first+40(FP), AX
	VMOVUPS (R9), Y4
	VMOVUPS 32(R9), Y5

addRow:
	VBROADCASTSS (R8), Y0
	VMULPS       Y0, Y4, Y2
	VMULPS       Y0, Y5, Y3
	VMULPS       (SI), Y2, Y2
	VMULPS       32(SI), Y3, Y3
	TESTL        AX, AX
	JNZ          addStore
	VADDPS       (DI), Y2, Y2
	VADDPS       32(DI), Y3, Y3

addStore:
	VMOVUPS Y2, (DI)
	VMOVUPS Y3, 32(DI)
	ADDQ    $64, DI
	ADDQ    $64, SI
	ADDQ    $4, R8
	DECQ    CX
	JNZ     addRow
	VZEROUPPER
	RET
