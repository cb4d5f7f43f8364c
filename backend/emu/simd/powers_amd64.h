// Powers of e and of two, of several vectors at a time. One power is a chain of some twenty
// dependent operations, and a processor's scheduler holds few chains that follow one
// another; so a kernel computes FOUR chains step by step, then the elements that remain by GROUP.
//
// A step has the parameters of FOUR: the argument in x, its integer part in n, and the
// power in p. Its constants are in V14 and V15: four chains and their lanes take the other
// registers of AVX2. Each product is rounded before it is added, as in the twins; only
// that with ln2Hi is fused, which is exact.

// POWER_LOOP runs four for each four vectors of CX elements, then group for each sixteen. AX
// counts bytes, R9 is overwritten.
#define POWER_LOOP(four, group) \
	SHLQ $2, CX \
	XORQ AX, AX \
	JMP next \
fours: \
	four \
	ADDQ $(4*WIDTH), AX \
next: \
	LEAQ (4*WIDTH)(AX), R9 \
	CMPQ R9, CX \
	JLS fours \
	JMP rest \
sixteen: \
	group \
	ADDQ $64, AX \
rest: \
	CMPQ AX, CX \
	JB sixteen

// CONSTANT sets v to the constant at index i of a table.
#define CONSTANT(table, i, v) \
	VBROADCASTSS table+(4*i)(SB), v

// POWERS computes the powers of any x, by EXP or EXP2. NaN stays NaN: VMAXPS and VMINPS
// return their first operand here if that is NaN.
#define POWERS(power, vectors) \
	CONSTANT(POWER_TABLE, 0, V14) \
	CONSTANT(POWER_TABLE, 1, V15) \
	vectors(CLAMP) \
	power(vectors) \
	vectors(SCALE_POWER)

#define CLAMP(at, x, n, p, lanes) \
	VMAXPS x, V14, x \
	VMINPS x, V15, x

// EXP leaves 1 in V15.
#define EXP(vectors) \
	CONSTANT(·expConstants, 4, V14) \
	CONSTANT(·expConstants, 3, V15) \
	vectors(EXP_N) \
	CONSTANT(·expConstants, 5, V14) \
	CONSTANT(·expConstants, 6, V15) \
	vectors(EXP_R) \
	EXP_SERIES(vectors)

// EXP_SERIES computes e^x for |x| ≤ ln 2 / 2 and leaves 1 in V15.
#define EXP_SERIES(vectors) \
	CONSTANT(·expConstants, 7, V14) \
	CONSTANT(·expConstants, 8, V15) \
	vectors(EXP_FIRST) \
	CONSTANT(·expConstants, 9, V14) \
	vectors(EXP_NEXT) \
	CONSTANT(·expConstants, 10, V14) \
	vectors(EXP_NEXT) \
	CONSTANT(·expConstants, 11, V14) \
	vectors(EXP_NEXT) \
	CONSTANT(·expConstants, 12, V14) \
	CONSTANT(·expConstants, 13, V15) \
	vectors(EXP_NEXT) \
	vectors(EXP_LAST)

#define EXP_N(at, x, n, p, lanes) \
	VMULPS V14, x, n \
	VADDPS V15, n, n \
	VSUBPS V15, n, n

#define EXP_R(at, x, n, p, lanes) \
	VFNMADD231PS V14, n, x \
	VMULPS V15, n, p \
	VSUBPS p, x, x

#define EXP_FIRST(at, x, n, p, lanes) \
	VMULPS V14, x, p \
	VADDPS V15, p, p

#define EXP_NEXT(at, x, n, p, lanes) \
	VMULPS p, x, p \
	VADDPS V14, p, p

#define EXP_LAST(at, x, n, p, lanes) \
	VMULPS p, x, p \
	VMULPS p, x, p \
	VADDPS x, p, p \
	VADDPS V15, p, p

// EXP2 leaves 1 in V15.
#define EXP2(vectors) \
	CONSTANT(·exp2Constants, 3, V15) \
	vectors(EXP2_N) \
	CONSTANT(·exp2Constants, 4, V14) \
	CONSTANT(·exp2Constants, 5, V15) \
	vectors(EXP2_FIRST) \
	vectors(EXP2_POLYNOMIAL) \
	CONSTANT(·exp2Constants, 6, V15) \
	vectors(EXP2_LAST)

#define EXP2_N(at, x, n, p, lanes) \
	VADDPS V15, x, n \
	VSUBPS V15, n, n \
	VSUBPS n, x, x

#define EXP2_FIRST(at, x, n, p, lanes) \
	VMULPS V14, x, p \
	VADDPS V15, p, p

#define EXP2_POLYNOMIAL(at, x, n, p, lanes) \
	VMULPS x, x, V14 \
	VMULPS EXP2_4, x, V15 \
	VADDPS EXP2_3, V15, V15 \
	VMULPS V14, p, p \
	VADDPS V15, p, p \
	VMULPS EXP2_2, x, V15 \
	VMULPS V14, p, p \
	VADDPS EXP2_1, V15, V15 \
	VADDPS V15, p, p

#define EXP2_LAST(at, x, n, p, lanes) \
	VMULPS x, p, p \
	VADDPS V15, p, p
