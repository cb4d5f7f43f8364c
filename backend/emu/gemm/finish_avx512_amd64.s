//go:build !noasm

#include "go_asm.h"
#include "textflag.h"

// The epilogue of finishRows, row by row; K1 and K2 mask the columns.
//
// SI acc; R8 row scales or 0; CX column scales or 0; R9 t; R10 rows left; R11
// residual, R12 its step in bytes, BX its format; DI out, R13 its step, DX its
// format; AX whether an amax is wanted.
//
// func finish14x32AVX512(acc *float32, t *tileOut)
TEXT ·finish14x32AVX512(SB), NOSPLIT, $0-16
	MOVQ acc+0(FP), SI
	MOVQ t+8(FP), R9

	MOVQ     tileOut_cols(R9), CX
	MOVL     $-1, AX
	CMPQ     CX, $32
	JGE      whole
	BZHIL    CX, AX, AX

whole:
	KMOVD    AX, K1
	KSHIFTRD $16, K1, K2

	VBROADCASTSS tileOut_alpha(R9), Z10
	MOVQ         tileOut_colScale(R9), CX
	TESTQ        CX, CX
	JZ           columns
	MOVQ         tileOut_j(R9), AX
	LEAQ         (CX)(AX*4), AX
	VMOVUPS.Z    (AX), K1, Z11
	VMOVUPS.Z    64(AX), K2, Z12

columns:
	MOVL         $0x7fffffff, AX
	VPBROADCASTD AX, Z13
	VPBROADCASTD tileOut_amax(R9), Z14
	VMOVAPS      Z14, Z15
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
	CMPL    DX, $const_asmF32
	JEQ     outF32
	CMPL    DX, $const_asmBF16
	JEQ     outBF16
	ADDQ    (tileOut_out+matrix_U8)(R9), DI

	VBROADCASTSS tileOut_outScale(R9), Z16
	VPBROADCASTD tileOut_largest(R9), Z17
	VPBROADCASTD tileOut_smallest(R9), Z18
	VPBROADCASTD tileOut_drop(R9), Z19
	VPSLLD       $23, Z19, Z20
	MOVL         $0x7f800000, AX
	VPBROADCASTD AX, Z21
	MOVL         $0x7f, AX
	VPBROADCASTD AX, Z22
	JMP          start

outF32:
	SHLQ $2, DI
	ADDQ (tileOut_out+matrix_F32)(R9), DI
	SHLQ $2, R13
	JMP  start

outBF16:
	SHLQ         $1, DI
	ADDQ         (tileOut_out+matrix_U16)(R9), DI
	SHLQ         $1, R13
	MOVL         $0x7fff, AX
	VPBROADCASTD AX, Z17
	MOVL         $1, AX
	VPBROADCASTD AX, Z18
	VPSLLD       $16, Z18, Z19
	MOVL         $0x7fff0000, AX
	VPBROADCASTD AX, Z20
	VMOVDQU64    oddWords<>(SB), Z21

start:
	MOVBLZX tileOut_wantAmax(R9), AX

row:
	VMULPS (SI), Z10, Z0
	VMULPS 64(SI), Z10, Z1
	TESTQ  R8, R8
	JZ     scaled
	VBROADCASTSS (R8), Z2
	VMULPS Z2, Z0, Z0
	VMULPS Z2, Z1, Z1
	ADDQ   $4, R8

scaled:
	TESTQ  CX, CX
	JZ     scaledColumns
	VMULPS Z11, Z0, Z0
	VMULPS Z12, Z1, Z1

scaledColumns:
	TESTL  BX, BX
	JZ     added
	CMPL   BX, $const_asmBF16
	JEQ    addBF16
	VMOVUPS.Z (R11), K1, Z2
	VMOVUPS.Z 64(R11), K2, Z3
	JMP    add

addBF16:
	VPMOVZXWD.Z (R11), K1, Z2
	VPMOVZXWD.Z 32(R11), K2, Z3
	VPSLLD      $16, Z2, Z2
	VPSLLD      $16, Z3, Z3

add:
	VADDPS Z2, Z0, Z0
	VADDPS Z3, Z1, Z1
	ADDQ   R12, R11

added:
	TESTL   AX, AX
	JZ      store
	VPANDD  Z13, Z0, Z2
	VPANDD  Z13, Z1, Z3
	VPMAXUD Z2, Z14, K1, Z14
	VPMAXUD Z3, Z15, K2, Z15

store:
	CMPL DX, $const_asmF32
	JEQ  storeF32
	CMPL DX, $const_asmBF16
	JEQ  storeBF16

	// As castNearest in package fp8: an FP32 addition rounds.
	VMULPS  Z16, Z0, Z0
	VMULPS  Z16, Z1, Z1
	VPANDD  Z13, Z0, Z2        // magnitude
	VPANDD  Z13, Z1, Z3
	VPCMPUD $6, Z21, Z2, K3    // NaN
	VPCMPUD $6, Z21, Z3, K4
	VPMINUD Z17, Z2, Z2
	VPMINUD Z17, Z3, Z3
	VPANDD  Z21, Z2, Z4
	VPANDD  Z21, Z3, Z5
	VPMAXUD Z18, Z4, Z4        // exponent
	VPMAXUD Z18, Z5, Z5
	VPADDD  Z20, Z4, Z6        // magic
	VPADDD  Z20, Z5, Z7
	VADDPS  Z6, Z2, Z2
	VADDPS  Z7, Z3, Z3
	VPSUBD  Z6, Z2, Z2
	VPSUBD  Z7, Z3, Z3
	VPSUBD  Z18, Z4, Z4
	VPSUBD  Z18, Z5, Z5
	VPSRLVD Z19, Z4, Z4
	VPSRLVD Z19, Z5, Z5
	VPADDD  Z4, Z2, Z2
	VPADDD  Z5, Z3, Z3
	VPSRLD  $31, Z0, Z0
	VPSRLD  $31, Z1, Z1
	VPSLLD  $7, Z0, Z0
	VPSLLD  $7, Z1, Z1
	VPORD   Z0, Z2, Z2
	VPORD   Z1, Z3, Z3
	VMOVDQA32 Z22, K3, Z2
	VMOVDQA32 Z22, K4, Z3
	VPMOVDB Z2, K1, (DI)
	VPMOVDB Z3, K2, 16(DI)
	JMP     next

	// Round to nearest even: add half of the last kept bit minus one, and one more if the
	// last kept bit is set.
storeBF16:
	VPTESTMD Z19, Z0, K3
	VPTESTMD Z19, Z1, K4
	VPADDD   Z17, Z0, Z2
	VPADDD   Z17, Z1, Z3
	VPADDD   Z18, Z2, K3, Z2
	VPADDD   Z18, Z3, K4, Z3
	VCMPPS   $3, Z1, Z0, K5    // a NaN in either
	KORTESTW K5, K5
	JNZ      nan

packBF16:
	VPERMT2W  Z3, Z21, Z2
	VMOVDQU16 Z2, K1, (DI)
	JMP       next

nan:
	VCMPPS    $3, Z0, Z0, K3
	VCMPPS    $3, Z1, Z1, K4
	VMOVDQA32 Z20, K3, Z2
	VMOVDQA32 Z20, K4, Z3
	JMP       packBF16

storeF32:
	VMOVUPS Z0, K1, (DI)
	VMOVUPS Z1, K2, 64(DI)

next:
	ADDQ R13, DI
	ADDQ $128, SI
	DECQ R10
	JNZ  row

	TESTL         AX, AX
	JZ            done

	// Reduce the maxima to one.
	VPMAXUD       Z15, Z14, Z14
	VEXTRACTI64X4 $1, Z14, Y15
	VPMAXUD       Y15, Y14, Y14
	VEXTRACTI128  $1, Y14, X15
	VPMAXUD       X15, X14, X14
	VPSHUFD       $0x4e, X14, X15
	VPMAXUD       X15, X14, X14
	VPSHUFD       $0xb1, X14, X15
	VPMAXUD       X15, X14, X14
	VMOVD         X14, tileOut_amax(R9)

done:
	VZEROUPPER
	RET

// The upper words of sixteen doublewords, then those of sixteen more.
DATA oddWords<>+0(SB)/8, $0x0007000500030001
DATA oddWords<>+8(SB)/8, $0x000f000d000b0009
DATA oddWords<>+16(SB)/8, $0x0017001500130011
DATA oddWords<>+24(SB)/8, $0x001f001d001b0019
DATA oddWords<>+32(SB)/8, $0x0027002500230021
DATA oddWords<>+40(SB)/8, $0x002f002d002b0029
DATA oddWords<>+48(SB)/8, $0x0037003500330031
DATA oddWords<>+56(SB)/8, $0x003f003d003b0039
GLOBL oddWords<>(SB), RODATA|NOPTR, $64
