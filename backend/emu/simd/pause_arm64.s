//go:build !noasm

#include "textflag.h"

// func Pause(n int)
TEXT ·Pause(SB), NOSPLIT, $0-8
	MOVD n+0(FP), R0

again:
	ISB  $15
	SUBS $1, R0
	BNE  again
	RET
