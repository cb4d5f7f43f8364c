//go:build !noasm

#include "textflag.h"

// A GEMM of few rows, whose speed is that of converting codes to FP32: converted codes stay
// in registers for the FMAs. DI is c, [rows, 32]; SI the codes, [k, 32]; R8 the rows of A,
// BX bytes apart.

#define STREAM_BEGIN \
	MOVQ k+0(FP), CX \
	MOVQ codes+8(FP), SI \
	MOVQ a+16(FP), R8 \
	MOVQ step+24(FP), BX \
	MOVQ c+32(FP), DI \
	SHLQ $2, BX \
	LEAQ (BX)(BX*2), R9

// Decode E5M2 to Z0 and Z1.
#define E5M2_DECODE \
	VPMOVZXBW     (SI), Z2 \
	VPSLLW        $8, Z2, Z2 \
	VEXTRACTI64X4 $1, Z2, Y3 \
	VCVTPH2PS     Y2, Z0 \
	VCVTPH2PS     Y3, Z1

#define E4M3_BEGIN \
	MOVL         special+40(FP), AX \
	VPBROADCASTW AX, Z16 \
	MOVL         $0x7f, AX \
	VPBROADCASTW AX, Z17 \
	MOVL         $0x4000, AX \
	VPBROADCASTW AX, Z18 \
	MOVL         $0xbf80, AX \
	VPBROADCASTW AX, Z19

// Decode E4M3, times 2^-8, to Z0 and Z1, see decodeE4M3AVX512.
#define E4M3_DECODE \
	VPMOVSXBW     (SI), Z2 \
	VPANDD        Z17, Z2, Z3 \
	VPSLLW        $7, Z2, Z2 \
	VPCMPUW       $5, Z16, Z3, K2 \
	VPANDD        Z19, Z2, Z2 \
	VPADDW        Z18, Z2, K2, Z2 \
	VEXTRACTI64X4 $1, Z2, Y3 \
	VCVTPH2PS     Y2, Z0 \
	VCVTPH2PS     Y3, Z1

// One row of A, or four, times codes that decode converts to Z0 and Z1.

#define STREAM1(decode) \
	VMOVUPS 0(DI), Z8 \
	VMOVUPS 64(DI), Z9 \
loop: \
	decode \
	VBROADCASTSS (R8), Z4 \
	VFMADD231PS  Z0, Z4, Z8 \
	VFMADD231PS  Z1, Z4, Z9 \
	ADDQ $32, SI \
	ADDQ $4, R8 \
	DECQ CX \
	JNZ  loop \
	VMOVUPS Z8, 0(DI) \
	VMOVUPS Z9, 64(DI) \
	VZEROUPPER \
	RET

#define STREAM4(decode) \
	VMOVUPS 0(DI), Z8 \
	VMOVUPS 64(DI), Z9 \
	VMOVUPS 128(DI), Z10 \
	VMOVUPS 192(DI), Z11 \
	VMOVUPS 256(DI), Z12 \
	VMOVUPS 320(DI), Z13 \
	VMOVUPS 384(DI), Z14 \
	VMOVUPS 448(DI), Z15 \
loop: \
	decode \
	VBROADCASTSS (R8), Z4 \
	VFMADD231PS  Z0, Z4, Z8 \
	VFMADD231PS  Z1, Z4, Z9 \
	VBROADCASTSS (R8)(BX*1), Z4 \
	VFMADD231PS  Z0, Z4, Z10 \
	VFMADD231PS  Z1, Z4, Z11 \
	VBROADCASTSS (R8)(BX*2), Z4 \
	VFMADD231PS  Z0, Z4, Z12 \
	VFMADD231PS  Z1, Z4, Z13 \
	VBROADCASTSS (R8)(R9*1), Z4 \
	VFMADD231PS  Z0, Z4, Z14 \
	VFMADD231PS  Z1, Z4, Z15 \
	ADDQ $32, SI \
	ADDQ $4, R8 \
	DECQ CX \
	JNZ  loop \
	VMOVUPS Z8, 0(DI) \
	VMOVUPS Z9, 64(DI) \
	VMOVUPS Z10, 128(DI) \
	VMOVUPS Z11, 192(DI) \
	VMOVUPS Z12, 256(DI) \
	VMOVUPS Z13, 320(DI) \
	VMOVUPS Z14, 384(DI) \
	VMOVUPS Z15, 448(DI) \
	VZEROUPPER \
	RET

// func stream1E5M2AVX512(k int, codes *uint8, a *float32, step int, c *float32)
TEXT ·stream1E5M2AVX512(SB), NOSPLIT, $0-40
	STREAM_BEGIN
	STREAM1(E5M2_DECODE)

// func stream4E5M2AVX512(k int, codes *uint8, a *float32, step int, c *float32)
TEXT ·stream4E5M2AVX512(SB), NOSPLIT, $0-40
	STREAM_BEGIN
	STREAM4(E5M2_DECODE)

// func stream1E4M3AVX512(k int, codes *uint8, a *float32, step int, c *float32, special uint32)
TEXT ·stream1E4M3AVX512(SB), NOSPLIT, $0-44
	STREAM_BEGIN
	E4M3_BEGIN
	STREAM1(E4M3_DECODE)

// func stream4E4M3AVX512(k int, codes *uint8, a *float32, step int, c *float32, special uint32)
TEXT ·stream4E4M3AVX512(SB), NOSPLIT, $0-44
	STREAM_BEGIN
	E4M3_BEGIN
	STREAM4(E4M3_DECODE)
