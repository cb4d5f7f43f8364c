//go:build !noasm

#include "textflag.h"
#include "widest_amd64.h"

// The loop loads 32 elements per iteration and prefetches AHEAD bytes ahead: the hardware
// prefetcher stops at each page, and the loop has little other work to hide its restart.
#define AHEAD 4096

// SQUARE adds the squares of the elements at a byte offset to lanes.
#define SQUARE(at, wide, lanes) \
	VCVTPS2PD at(SI), wide \
	VFMADD231PD wide, wide, lanes

#define CLEAR(at, wide, lanes) \
	VXORPD lanes, lanes, lanes

#define STORE(at, wide, lanes) \
	VMOVUPD lanes, (2*at)(DI)

#define SQUARE_LANES \
	MOVQ lanes+0(FP), DI \
	MOVQ x+8(FP), SI \
	MOVQ n+16(FP), CX \
	THIRTYTWO(CLEAR) \
loop: \
	PREFETCHT0 AHEAD(SI) \
	PREFETCHT0 (AHEAD+64)(SI) \
	THIRTYTWO(SQUARE) \
	ADDQ $128, SI \
	SUBQ $32, CX \
	JNZ loop \
	THIRTYTWO(STORE) \
	VZEROUPPER \
	RET

#define THIRTYTWO(do) \
	do(0, Z4, Z0) \
	do(32, Z5, Z1) \
	do(64, Z6, Z2) \
	do(96, Z7, Z3)

// func squareLanesVectors(lanes *[32]float64, x *float32, n int)
TEXT ·squareLanesVectors(SB), NOSPLIT, $0-24
	WIDEST(·squareLanesAVX512<>(SB), ·squareLanesAVX2<>(SB))

TEXT ·squareLanesAVX512<>(SB), NOSPLIT, $0-24
	SQUARE_LANES

#undef THIRTYTWO
#define THIRTYTWO(do) \
	do(0, Y8, Y0) \
	do(16, Y9, Y1) \
	do(32, Y10, Y2) \
	do(48, Y11, Y3) \
	do(64, Y12, Y4) \
	do(80, Y13, Y5) \
	do(96, Y14, Y6) \
	do(112, Y15, Y7)

TEXT ·squareLanesAVX2<>(SB), NOSPLIT, $0-24
	SQUARE_LANES
