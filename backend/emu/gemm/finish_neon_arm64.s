//go:build !noasm

#include "go_asm.h"
#include "../simd/neon_arm64.h"
#include "textflag.h"

// Each of these macros handles the four vectors of a row, V0-V3.

#define ROW4(op, m) \
	op(m, 0, 0) \
	op(m, 1, 1) \
	op(m, 2, 2) \
	op(m, 3, 3)

#define MAGNITUDE(x) \
	VAND  V24.B16, x.B16, V4.B16 \
	VUMAX V4.S4, V25.S4, V25.S4

// Rounds to BF16 in the upper half of x: V26 is 0x7fff, V27 is 1, V28 is
// infinity, V29 the NaN, 0x7fff0000.
#define ROUND_BF16(x) \
	VAND  V24.B16, x.B16, V4.B16 \
	VUMIN V28.S4, V4.S4, V5.S4 \
	VCMEQ V5.S4, V4.S4, V5.S4 \
	VUSHR $16, x.S4, V4.S4 \
	VAND  V27.B16, V4.B16, V4.B16 \
	VADD  V26.S4, V4.S4, V4.S4 \
	VADD  V4.S4, x.S4, x.S4 \
	VBIF  V5.B16, V29.B16, x.B16

// The epilogue of finishRows for whole tiles of 16 columns and F32 or BF16 outputs, row by
// row. A missing column scale is four vectors of ones.
//
// R0 acc; R1 row scales or 0; R2 t; R3 rows left; R4 residual, R5 its step in
// bytes, R6 its format; R7 out, R8 its step, R9 its format.
//
// func finish6x16NEON(acc *float32, t *tileOut)
TEXT ·finish6x16NEON(SB), NOSPLIT, $0-16
	MOVD acc+0(FP), R0
	MOVD t+8(FP), R2

	MOVWU tileOut_alpha(R2), R10
	VDUP  R10, V16.S4
	MOVD  $0x3f800000, R10
	VDUP  R10, V20.S4
	VDUP  R10, V21.S4
	VDUP  R10, V22.S4
	VDUP  R10, V23.S4
	MOVD  tileOut_colScale(R2), R10
	CBZ   R10, columns
	MOVD  tileOut_j(R2), R11
	ADD   R11<<2, R10
	VLD1  (R10), [V20.S4, V21.S4, V22.S4, V23.S4]

columns:
	MOVD  $0x7fffffff, R10
	VDUP  R10, V24.S4
	MOVWU tileOut_amax(R2), R10
	VDUP  R10, V25.S4
	MOVD  $0x7fff, R10
	VDUP  R10, V26.S4
	MOVD  $1, R10
	VDUP  R10, V27.S4
	MOVD  $0x7f800000, R10
	VDUP  R10, V28.S4
	MOVD  $0x7fff0000, R10
	VDUP  R10, V29.S4
	VEOR  V30.B16, V30.B16, V30.B16
	MOVD  tileOut_i(R2), R11
	MOVD  tileOut_j(R2), R12
	MOVD  tileOut_rows(R2), R3
	MOVD  tileOut_rowScale(R2), R1
	CBZ   R1, rows
	ADD   R11<<2, R1

rows:
	MOVD  (tileOut_residual+matrix_LD)(R2), R5
	MADD  R5, R12, R11, R10    // R11·R5 + R12
	MOVBU (tileOut_residual+matrix_DType)(R2), R6
	CMP   $const_asmBF16, R6
	BEQ   residualBF16
	MOVD  (tileOut_residual+matrix_F32)(R2), R4
	ADD   R10<<2, R4
	LSL   $2, R5
	B     residual

residualBF16:
	MOVD (tileOut_residual+matrix_U16)(R2), R4
	ADD  R10<<1, R4
	LSL  $1, R5

residual:
	MOVD  (tileOut_out+matrix_LD)(R2), R8
	MADD  R8, R12, R11, R10
	MOVBU (tileOut_out+matrix_DType)(R2), R9
	CMP   $const_asmBF16, R9
	BEQ   outBF16
	MOVD  (tileOut_out+matrix_F32)(R2), R7
	ADD   R10<<2, R7
	LSL   $2, R8
	B     row

outBF16:
	MOVD (tileOut_out+matrix_U16)(R2), R7
	ADD  R10<<1, R7
	LSL  $1, R8

row:
	VLD1.P 64(R0), [V0.S4, V1.S4, V2.S4, V3.S4]
	ROW4(VFMUL, 16)
	CBZ    R1, scaled
	VLD1R.P 4(R1), [V17.S4]
	ROW4(VFMUL, 17)

scaled:
	VFMUL(20, 0, 0)
	VFMUL(21, 1, 1)
	VFMUL(22, 2, 2)
	VFMUL(23, 3, 3)
	CBZ    R6, added
	CMP    $const_asmBF16, R6
	BEQ    addBF16
	VLD1   (R4), [V4.S4, V5.S4, V6.S4, V7.S4]
	B      add

addBF16:
	VLD1  (R4), [V18.H8, V19.H8]
	VZIP1 V18.H8, V30.H8, V4.H8
	VZIP2 V18.H8, V30.H8, V5.H8
	VZIP1 V19.H8, V30.H8, V6.H8
	VZIP2 V19.H8, V30.H8, V7.H8

add:
	VFADD(4, 0, 0)
	VFADD(5, 1, 1)
	VFADD(6, 2, 2)
	VFADD(7, 3, 3)
	ADD R5, R4

added:
	MAGNITUDE(V0)
	MAGNITUDE(V1)
	MAGNITUDE(V2)
	MAGNITUDE(V3)
	CMP $const_asmBF16, R9
	BNE storeF32

	ROUND_BF16(V0)
	ROUND_BF16(V1)
	ROUND_BF16(V2)
	ROUND_BF16(V3)
	VUZP2 V1.H8, V0.H8, V0.H8
	VUZP2 V3.H8, V2.H8, V1.H8
	VST1  [V0.H8, V1.H8], (R7)
	B     next

storeF32:
	VST1 [V0.S4, V1.S4, V2.S4, V3.S4], (R7)

next:
	ADD  R8, R7
	SUBS $1, R3
	BNE  row

	// Reduce the maxima to one.
	VEXT  $8, V25.B16, V25.B16, V4.B16
	VUMAX V4.S4, V25.S4, V25.S4
	VEXT  $4, V25.B16, V25.B16, V4.B16
	VUMAX V4.S4, V25.S4, V25.S4
	FMOVS F25, tileOut_amax(R2)
	RET
