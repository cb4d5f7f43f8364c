// ASIMD instructions that the Go assembler lacks. The arguments are numbers of
// vector registers in the assembler's order: the source registers from last to
// first, then the destination. Each works on four 32-bit elements, if it does not say otherwise.

// FMUL, FADD d, n, m
#define VFMUL(m, n, d) WORD $(0x6e20dc00 | (m)<<16 | (n)<<5 | (d))
#define VFADD(m, n, d) WORD $(0x4e20d400 | (m)<<16 | (n)<<5 | (d))

// FCVTZS d, n: float32 to int32, toward zero
#define VFCVTZS(n, d) WORD $(0x4ea1b800 | (n)<<5 | (d))

// MUL d, n, m: the low 32 bits of the product
#define VMUL(m, n, d) WORD $(0x4ea09c00 | (m)<<16 | (n)<<5 | (d))

// MUL and CMHI for eight 16-bit elements
#define VMULH(m, n, d) WORD $(0x4e609c00 | (m)<<16 | (n)<<5 | (d))
#define VCMHIH(m, n, d) WORD $(0x6e603400 | (m)<<16 | (n)<<5 | (d))

// USHL d, n, m: n shifted left by m, or right where m is negative
#define VUSHL(m, n, d) WORD $(0x6ea04400 | (m)<<16 | (n)<<5 | (d))

// CMHI d, n, m: all ones where n > m, unsigned
#define VCMHI(m, n, d) WORD $(0x6ea03400 | (m)<<16 | (n)<<5 | (d))

// FCVTL and FCVTL2: the lower and the upper half of eight F16 to float32
#define VFCVTL(n, d) WORD $(0x0e217800 | (n)<<5 | (d))
#define VFCVTL2(n, d) WORD $(0x4e217800 | (n)<<5 | (d))
