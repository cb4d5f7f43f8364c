//go:build !noasm

#include "textflag.h"

// func prefetchRows(p unsafe.Pointer, step, rows, bytes int)
TEXT ·prefetchRows(SB), NOSPLIT, $0-32
	MOVQ p+0(FP), SI
	MOVQ step+8(FP), R8
	MOVQ rows+16(FP), R9
	MOVQ bytes+24(FP), R10

row:
	LEAQ (SI)(R10*1), DX
	MOVQ SI, DI
	ANDQ $-64, DI

line:
	PREFETCHT1 (DI)
	ADDQ       $64, DI
	CMPQ       DI, DX
	JB         line
	ADDQ       R8, SI
	DECQ       R9
	JNZ        row
	RET
