//go:build !noasm

#include "textflag.h"

// The loops load 32 elements a
// turn. Lines are fetched early by hand: the processor's own prefetching ends
// at every page, and there is little else to do while it starts again.
#define AHEAD 4096

// func squareLanesAVX512(lanes *[32]float64, x *float32, n int)
TEXT ·squareLanesAVX512(SB), NOSPLIT, $0-24
	MOVQ lanes+0(FP), DI
	MOVQ x+8(FP), SI
	MOVQ n+16(FP), CX
	VMOVUPD 0(DI), Z0
	VMOVUPD 64(DI), Z1
	VMOVUPD 128(DI), Z2
	VMOVUPD 192(DI), Z3

loop:
	PREFETCHT0 AHEAD(SI)
	PREFETCHT0 (AHEAD+64)(SI)
	VCVTPS2PD 0(SI), Z4
	VCVTPS2PD 32(SI), Z5
	VCVTPS2PD 64(SI), Z6
	VCVTPS2PD 96(SI), Z7
	VFMADD231PD Z4, Z4, Z0
	VFMADD231PD Z5, Z5, Z1
	VFMADD231PD Z6, Z6, Z2
	VFMADD231PD Z7, Z7, Z3
	ADDQ $128, SI
	SUBQ $32, CX
	JNZ loop

	VMOVUPD Z0, 0(DI)
	VMOVUPD Z1, 64(DI)
	VMOVUPD Z2, 128(DI)
	VMOVUPD Z3, 192(DI)
	VZEROUPPER
	RET

// SQUARE adds the squares of four elements to the lanes y.
#define SQUARE(at, y) \
	VCVTPS2PD at(SI), Y8; \
	VMULPD Y8, Y8, Y8; \
	VADDPD Y8, y, y

// func squareLanesAVX2(lanes *[32]float64, x *float32, n int)
TEXT ·squareLanesAVX2(SB), NOSPLIT, $0-24
	MOVQ lanes+0(FP), DI
	MOVQ x+8(FP), SI
	MOVQ n+16(FP), CX
	VMOVUPD 0(DI), Y0
	VMOVUPD 32(DI), Y1
	VMOVUPD 64(DI), Y2
	VMOVUPD 96(DI), Y3
	VMOVUPD 128(DI), Y4
	VMOVUPD 160(DI), Y5
	VMOVUPD 192(DI), Y6
	VMOVUPD 224(DI), Y7

loop:
	PREFETCHT0 AHEAD(SI)
	PREFETCHT0 (AHEAD+64)(SI)
	SQUARE(0, Y0)
	SQUARE(16, Y1)
	SQUARE(32, Y2)
	SQUARE(48, Y3)
	SQUARE(64, Y4)
	SQUARE(80, Y5)
	SQUARE(96, Y6)
	SQUARE(112, Y7)
	ADDQ $128, SI
	SUBQ $32, CX
	JNZ loop

	VMOVUPD Y0, 0(DI)
	VMOVUPD Y1, 32(DI)
	VMOVUPD Y2, 64(DI)
	VMOVUPD Y3, 96(DI)
	VMOVUPD Y4, 128(DI)
	VMOVUPD Y5, 160(DI)
	VMOVUPD Y6, 192(DI)
	VMOVUPD Y7, 224(DI)
	VZEROUPPER
	RET
