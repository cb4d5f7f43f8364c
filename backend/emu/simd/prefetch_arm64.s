//go:build !noasm

#include "textflag.h"

// func prefetchRows(p unsafe.Pointer, step, rows, bytes int)
TEXT ·prefetchRows(SB), NOSPLIT, $0-32
	MOVD p+0(FP), R0
	MOVD step+8(FP), R1
	MOVD rows+16(FP), R2
	MOVD bytes+24(FP), R3

row:
	ADD R0, R3, R4
	AND $~63, R0, R5

line:
	PRFM (R5), PLDL2KEEP
	ADD  $64, R5
	CMP  R4, R5
	BLO  line
	ADD  R1, R0
	SUBS $1, R2
	BNE  row
	RET
