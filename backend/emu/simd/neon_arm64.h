// Advanced SIMD instructions that the Go assembler lacks. The arguments are the numbers
// of vector registers, in the assembler's order: the operands from last to first, then
// the destination. Unless a comment says otherwise, an instruction works on four float32.

// FMLA d, n, m[0]
#define VFMLA0(m, n, d) WORD $(0x4f801000 | (m)<<16 | (n)<<5 | (d))

// FMUL, FADD, FSUB, FDIV, FMAX, FMIN d, n, m; FMAX and FMIN return NaN if an operand is NaN
#define VFMUL(m, n, d) WORD $(0x6e20dc00 | (m)<<16 | (n)<<5 | (d))
#define VFADD(m, n, d) WORD $(0x4e20d400 | (m)<<16 | (n)<<5 | (d))
#define VFSUB(m, n, d) WORD $(0x4ea0d400 | (m)<<16 | (n)<<5 | (d))
#define VFDIV(m, n, d) WORD $(0x6e20fc00 | (m)<<16 | (n)<<5 | (d))
#define VFMAX(m, n, d) WORD $(0x4e20f400 | (m)<<16 | (n)<<5 | (d))
#define VFMIN(m, n, d) WORD $(0x4ea0f400 | (m)<<16 | (n)<<5 | (d))

// FMLS d, n, m: d − n·m, rounded once
#define VFMSUB(m, n, d) WORD $(0x4ea0cc00 | (m)<<16 | (n)<<5 | (d))

// FABS d, n
#define VFABS(n, d) WORD $(0x4ea0f800 | (n)<<5 | (d))

// FSQRT d, n
#define VFSQRT(n, d) WORD $(0x6ea1f800 | (n)<<5 | (d))

// FCMGT, FCMGE d, n, m: all ones where n > m or n ≥ m; false for NaN
#define VFCMGT(m, n, d) WORD $(0x6ea0e400 | (m)<<16 | (n)<<5 | (d))
#define VFCMGE(m, n, d) WORD $(0x6e20e400 | (m)<<16 | (n)<<5 | (d))

// CMGE d, n, #0: all ones where the sign bit of n is 0
#define VPOSITIVE(n, d) WORD $(0x6ea08800 | (n)<<5 | (d))

// FCVTZS, SCVTF: float32 to int32, truncated, and back, rounded to nearest even
#define VFCVTZS(n, d) WORD $(0x4ea1b800 | (n)<<5 | (d))
#define VSCVTF(n, d) WORD $(0x4e21d800 | (n)<<5 | (d))

// FMAXV: the largest element of n to the scalar d
#define VFMAXV(n, d) WORD $(0x6e30f800 | (n)<<5 | (d))

// FCVTL and FCVTL2: the lower and the upper half of eight FP16 to float32
#define VFCVTL(n, d) WORD $(0x0e217800 | (n)<<5 | (d))
#define VFCVTL2(n, d) WORD $(0x4e217800 | (n)<<5 | (d))

// FCVTL and FCVTL2: the lower and the upper half of four float32 to float64
#define VFCVTLD(n, d) WORD $(0x0e617800 | (n)<<5 | (d))
#define VFCVTL2D(n, d) WORD $(0x4e617800 | (n)<<5 | (d))

// FOLD adds up the sixteen lanes of a to d, the result in the first lane of a. v is the
// name of register a. It overwrites V0, a and b.
#define FOLD(v, a, b, c, d) \
	VFADD(c, a, a) \
	VFADD(d, b, b) \
	VFADD(b, a, a) \
	VDUP v.D[1], V0.D2 \
	VFADD(0, a, a) \
	VDUP v.S[1], V0.S4 \
	VFADD(0, a, a)
