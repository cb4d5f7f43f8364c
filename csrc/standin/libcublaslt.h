// Declarations that the files of the stand-in for cuBLASLt share.
#ifndef STANDIN_LIBCUBLASLT_H
#define STANDIN_LIBCUBLASLT_H

#include "standin.h"

enum {
	SUCCESS = 0,
	NOT_INITIALIZED = 1,
	INVALID_VALUE = 7,
	EXECUTION_FAILED = 13,
	NOT_SUPPORTED = 15,
};

enum { F32 = 0, F16 = 2, BF16 = 14, E4M3 = 28, E5M2 = 29, E2M1 = 33 };

// Attributes of a matmul descriptor, as indices of description.value.
enum { POINTER_MODE, TRANSA, TRANSB, A_SCALE, B_SCALE, D_SCALE, AMAX_D, FAST, A_MODE, B_MODE, ATTRIBUTES };

// Modes of scales.
enum { SCALAR, VEC16_UE4M3, VEC32_UE8M0, OUTER_VEC, VEC128, BLK128 };

typedef struct {
	int compute, scale;
	uint64_t value[ATTRIBUTES];
} description;

typedef struct {
	int type;
	uint64_t rows, cols;
	int64_t ld;
} layout;

// bits returns the bits of an element, 0 for an unknown type.
int bits(int type);
static inline int is_narrow(int type) { return bits(type) <= 8; }
float decode(const void *data, int type, uint64_t i);
// encode rounds to nearest even; FP8 saturates.
void encode(void *data, int type, uint64_t i, float x);

// check_scales returns SUCCESS for modes that the documentation lists for this GEMM of narrow
// operands on a GPU of this compute capability.
int check_scales(const description *p, const layout *a, const layout *b, const layout *d, uint64_t m, uint64_t n, uint64_t k, long capability);
// scale_bytes returns the bytes of the scales of an operand with this many rows along K.
uint64_t scale_bytes(int mode, uint64_t rows, uint64_t k);
// scale_value returns the scale of element l of row i.
float scale_value(int mode, const void *scales, uint64_t i, uint64_t l, uint64_t rows, uint64_t k);
// padded_with_zeros reports whether the padding of scales in tiles is zero.
int padded_with_zeros(int mode, const void *scales, uint64_t rows, uint64_t k);

size_t cublasLtGetVersion(void);

#endif
