//go:build !noasm

#include "textflag.h"
#include "zmm_amd64.h"
#include "powers_amd64.h"

// The steps of GELU have the parameters of FOUR. CLAMP_SETUP and the steps with MAGNITUDE
// use V13 and V14.

#define CLAMP_SETUP \
	CONSTANT(·signMasks, 0, V13) \
	CONSTANT(·geluConstants, 0, V14)

// MAGNITUDE sets a to geluMagnitude. VMINPS returns its first operand here if that is NaN.
#define MAGNITUDE(at, a) \
	VANDPS at(SI)(AX*1), V13, a \
	VMINPS a, V14, a

// HALF_SQUARE sets x to −a²/2, rounded, and p to the rounding error.
#define HALF_SQUARE(at, x, n, p, lanes) \
	MAGNITUDE(at, n) \
	VMULPS V15, n, p \
	VMULPS n, p, x \
	VFMSUB213PS x, n, p

#define SHIFTED(at, x, n, p, lanes) \
	VMULPS V14, x, n \
	VADDPS V15, n, n

#define REMAINDER(at, x, n, p, lanes) \
	VSUBPS V15, n, V12 \
	VFNMADD231PS V13, V12, x \
	VMULPS V14, V12, V12 \
	VSUBPS V12, x, x \
	VADDPS p, x, x

// FRACTION completes the power in p, and sets x to d.
#define FRACTION(at, x, n, p, lanes) \
	VPSLLD $23, n, n \
	VPADDD n, p, p \
	MAGNITUDE(at, n) \
	VADDPS V15, n, x \
	VDIVPS x, n, x

// HALF_SQUARE_POWER sets p to halfSquarePower and x to d.
#define HALF_SQUARE_POWER(vectors) \
	CLAMP_SETUP \
	CONSTANT(·geluConstants, 1, V15) \
	vectors(HALF_SQUARE) \
	CONSTANT(·expConstants, 4, V14) \
	CONSTANT(·geluConstants, 2, V15) \
	vectors(SHIFTED) \
	CONSTANT(·expConstants, 5, V13) \
	CONSTANT(·expConstants, 6, V14) \
	vectors(REMAINDER) \
	EXP_SERIES(vectors) \
	CLAMP_SETUP \
	CONSTANT(·geluConstants, 3, V15) \
	vectors(FRACTION)

#define MILLS_FIRST(at, x, n, p, lanes) \
	VSUBPS V13, x, x \
	VMULPS V14, x, n \
	VADDPS V15, n, n

#define MILLS_NEXT(at, x, n, p, lanes) \
	VMULPS n, x, n \
	VADDPS V14, n, n

// MILLS replaces d in x by d − geluCenter, and sets n to p(d).
#define MILLS(vectors) \
	CONSTANT(·geluConstants, 4, V13) \
	CONSTANT(·geluConstants, 5, V14) \
	CONSTANT(·geluConstants, 6, V15) \
	vectors(MILLS_FIRST) \
	CONSTANT(·geluConstants, 7, V14) \
	vectors(MILLS_NEXT) \
	CONSTANT(·geluConstants, 8, V14) \
	vectors(MILLS_NEXT) \
	CONSTANT(·geluConstants, 9, V14) \
	vectors(MILLS_NEXT) \
	CONSTANT(·geluConstants, 10, V14) \
	vectors(MILLS_NEXT) \
	CONSTANT(·geluConstants, 11, V14) \
	vectors(MILLS_NEXT) \
	CONSTANT(·geluConstants, 12, V14) \
	vectors(MILLS_NEXT) \
	CONSTANT(·geluConstants, 13, V14) \
	vectors(MILLS_NEXT) \
	CONSTANT(·geluConstants, 14, V14) \
	vectors(MILLS_NEXT)

// STEP loads x and sets n to unitStep. V14 is 1.
#define STEP(at, x, n) \
	VMOVUPS at(SI)(AX*1), x \
	VPSRAD $31, x, n \
	VANDNPS V14, n, n

#define TIMES_D(at, x, n, p, lanes) \
	VMULPS x, p, p

#define GELU_RESULT(at, x, n, p, lanes) \
	VMULPS n, p, p \
	VMULPS V15, p, p \
	STEP(at, x, n) \
	VMULPS x, n, n \
	VSUBPS p, n, n \
	VMOVUPS n, at(DI)(AX*1)

#define GELU_OF(vectors) \
	HALF_SQUARE_POWER(vectors) \
	vectors(TIMES_D) \
	MILLS(vectors) \
	CONSTANT(·expConstants, 13, V14) \
	CONSTANT(·geluConstants, 15, V15) \
	vectors(GELU_RESULT)

// TAIL multiplies p by m(a) − a·φ(0).
#define TAIL(at, x, n, p, lanes) \
	VSUBPS x, V12, x \
	VMULPS x, n, n \
	MAGNITUDE(at, x) \
	VMULPS V15, x, x \
	VSUBPS x, n, n \
	VMULPS n, p, p

// SLOPE_RESULT adds 0·x by an FMA, which is exact.
#define SLOPE_RESULT(at, x, n, p, lanes) \
	VMULPS V15, p, p \
	STEP(at, x, n) \
	VFMADD231PS V12, x, n \
	VANDPS V13, x, x \
	VXORPS x, p, p \
	VSUBPS p, n, n \
	VMULPS at(DX)(AX*1), n, n \
	VMOVUPS n, at(DI)(AX*1)

#define GRADIENT_OF(vectors) \
	HALF_SQUARE_POWER(vectors) \
	MILLS(vectors) \
	CLAMP_SETUP \
	CONSTANT(·geluConstants, 16, V12) \
	CONSTANT(·geluConstants, 17, V15) \
	vectors(TAIL) \
	VXORPS V12, V12, V12 \
	CONSTANT(·signMasks, 1, V13) \
	CONSTANT(·expConstants, 13, V14) \
	CONSTANT(·geluConstants, 18, V15) \
	vectors(SLOPE_RESULT)

#define GELU \
	MOVQ dst+0(FP), DI \
	MOVQ x+8(FP), SI \
	MOVQ n+16(FP), CX \
	POWER_LOOP(GELU_OF(FOUR), GELU_OF(GROUP)) \
	VZEROUPPER \
	RET

#define GELU_GRADIENT \
	MOVQ dx+0(FP), DI \
	MOVQ x+8(FP), SI \
	MOVQ dy+16(FP), DX \
	MOVQ n+24(FP), CX \
	POWER_LOOP(GRADIENT_OF(FOUR), GRADIENT_OF(GROUP)) \
	VZEROUPPER \
	RET

// func geluVectors(dst, x *float32, n int)
TEXT ·geluVectors(SB), NOSPLIT, $0-24
	WIDEST(·geluAVX512<>(SB), ·geluAVX2<>(SB))

// func geluGradientVectors(dx, x, dy *float32, n int)
TEXT ·geluGradientVectors(SB), NOSPLIT, $0-32
	WIDEST(·geluGradientAVX512<>(SB), ·geluGradientAVX2<>(SB))

TEXT ·geluAVX512<>(SB), NOSPLIT, $0-24
	GELU

TEXT ·geluGradientAVX512<>(SB), NOSPLIT, $0-32
	GELU_GRADIENT

#include "ymm_amd64.h"

TEXT ·geluAVX2<>(SB), NOSPLIT, $0-24
	GELU

TEXT ·geluGradientAVX2<>(SB), NOSPLIT, $0-32
	GELU_GRADIENT
