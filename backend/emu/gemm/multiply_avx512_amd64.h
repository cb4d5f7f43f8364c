// A tile of 14, 8 or 4 rows and 32 columns. The accumulators are Z0-Z27, two per row; Z28
// and Z29 hold a row of B, Z30 and Z31 alternately an element of A. Five pointers reach
// fourteen rows of A: each its own row and, by BX and 2·BX, the next two. do(row, element
// of A, its register, accumulators) multiplies an element of A.

#define STEPS4(do) \
	do(0, (R8), Z30, Z0, Z1) \
	do(1, (R8)(BX*1), Z31, Z2, Z3) \
	do(2, (R8)(BX*2), Z30, Z4, Z5) \
	do(3, (R9), Z31, Z6, Z7) \
	ADDQ CX, R8 \
	ADDQ CX, R9

#define STEPS8(do) \
	do(4, (R9)(BX*1), Z30, Z8, Z9) \
	do(5, (R9)(BX*2), Z31, Z10, Z11) \
	do(6, (R10), Z30, Z12, Z13) \
	do(7, (R10)(BX*1), Z31, Z14, Z15) \
	STEPS4(do) \
	ADDQ CX, R10

#define STEPS14(do) \
	do(8, (R10)(BX*2), Z30, Z16, Z17) \
	do(9, (R11), Z31, Z18, Z19) \
	do(10, (R11)(BX*1), Z30, Z20, Z21) \
	do(11, (R11)(BX*2), Z31, Z22, Z23) \
	do(12, (R12), Z30, Z24, Z25) \
	do(13, (R12)(BX*1), Z31, Z26, Z27) \
	STEPS8(do) \
	ADDQ CX, R11 \
	ADDQ CX, R12

#define ROWS4(do) \
	do(0, Z0, Z1) \
	do(1, Z2, Z3) \
	do(2, Z4, Z5) \
	do(3, Z6, Z7)

#define ROWS8(do) \
	ROWS4(do) \
	do(4, Z8, Z9) \
	do(5, Z10, Z11) \
	do(6, Z12, Z13) \
	do(7, Z14, Z15)

#define ROWS14(do) \
	ROWS8(do) \
	do(8, Z16, Z17) \
	do(9, Z18, Z19) \
	do(10, Z20, Z21) \
	do(11, Z22, Z23) \
	do(12, Z24, Z25) \
	do(13, Z26, Z27)

#define LOAD2(i, c0, c1) \
	VMOVUPS (128*i)(DI), c0 \
	VMOVUPS (128*i+64)(DI), c1

#define STORE2(i, c0, c1) \
	VMOVUPS c0, (128*i)(DI) \
	VMOVUPS c1, (128*i+64)(DI)

#define ZERO2(i, c0, c1) \
	VPXORD c0, c0, c0 \
	VPXORD c1, c1, c1

// A call that loads accumulators prefetches the next tile of accumulators. A prefetch past
// the end does nothing.
#define MULTIPLY(rows, steps, do) \
	MOVQ k+0(FP), AX \
	MOVQ a+8(FP), R8 \
	MOVQ step+16(FP), BX \
	MOVQ stepK+24(FP), CX \
	MOVQ b+32(FP), DX \
	MOVQ c+40(FP), DI \
	SHLQ $2, BX \
	SHLQ $2, CX \
	LEAQ (BX)(BX*2), SI \
	LEAQ (R8)(SI*1), R9 \
	LEAQ (R9)(SI*1), R10 \
	LEAQ (R10)(SI*1), R11 \
	LEAQ (R11)(SI*1), R12 \
	CMPB load+48(FP), $0 \
	JEQ  zero \
	rows(LOAD2) \
	MOVQ $1792, R13 \
prefetch: \
	PREFETCHT0 (DI)(R13*1) \
	ADDQ $64, R13 \
	CMPQ R13, $3584 \
	JLT  prefetch \
	JMP  start \
zero: \
	rows(ZERO2) \
start: \
	TESTQ AX, AX \
	JZ   store \
	PCALIGN $32 \
loop: \
	VMOVUPS (DX), Z28 \
	VMOVUPS 64(DX), Z29 \
	steps(do) \
	ADDQ $128, DX \
	DECQ AX \
	JNZ  loop \
store: \
	rows(STORE2) \
	VZEROUPPER \
	RET
