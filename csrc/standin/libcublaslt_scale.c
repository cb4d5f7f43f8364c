//go:build ignore

// The scale modes of the stand-in for cuBLASLt: which exist, and how it reads the scales.
// Sources: NVIDIA's cuBLAS documentation, "Narrow precision data types usage" and "1D block
// scaling factors layout".

#include "libcublaslt.h"

#include <math.h>

static uint64_t ceil_div(uint64_t n, uint64_t size) { return (n + size - 1) / size; }

static uint64_t elements(int mode) { return mode == VEC16_UE4M3 ? 16 : mode == VEC32_UE8M0 ? 32 : 128; }

int check_scales(const description *p, const layout *a, const layout *b, const layout *d, uint64_t m, uint64_t n, uint64_t k, long capability) {
	const int ma = p->value[A_MODE], mb = p->value[B_MODE], fp4 = a->type == E2M1;
	if (fp4 != (b->type == E2M1) || fp4 != (ma == VEC16_UE4M3))
		return NOT_SUPPORTED;
	if (ma == SCALAR && mb == SCALAR)
		return SUCCESS;
	if (!p->value[A_SCALE] || !p->value[B_SCALE] || is_narrow(d->type))
		return NOT_SUPPORTED;
	switch (ma) {
	case VEC16_UE4M3:
	case VEC32_UE8M0:
		return ma == mb && capability >= 100 && k % 32 == 0 ? SUCCESS : NOT_SUPPORTED;
	case OUTER_VEC:
		return ma == mb && capability == 90 ? SUCCESS : NOT_SUPPORTED;
	case VEC128:
	case BLK128:
		if ((mb != VEC128 && mb != BLK128) || (ma == BLK128 && mb == BLK128))
			return NOT_SUPPORTED;
		return capability == 90 && m % 4 == 0 && n % 4 == 0 ? SUCCESS : NOT_SUPPORTED;
	}
	return NOT_SUPPORTED;
}

uint64_t scale_bytes(int mode, uint64_t rows, uint64_t k) {
	const uint64_t blocks = ceil_div(k, elements(mode));
	switch (mode) {
	case VEC16_UE4M3:
	case VEC32_UE8M0: return ceil_div(rows, 128) * ceil_div(blocks, 4) * 512;
	case OUTER_VEC: return 4 * rows;
	case VEC128: return 4 * rows * blocks;
	case BLK128: return 4 * ceil_div(rows, 128) * ceil_div(blocks, 4) * 4;
	}
	return 4;
}

// tiled returns the place of the scale of row i and block j.
static uint64_t tiled(uint64_t i, uint64_t j, uint64_t blocks) {
	return (i / 128 * ceil_div(blocks, 4) + j / 4) * 512 + i % 32 * 16 + i % 128 / 32 * 4 + j % 4;
}

float scale_value(int mode, const void *scales, uint64_t i, uint64_t l, uint64_t rows, uint64_t k) {
	const uint64_t blocks = ceil_div(k, elements(mode)), j = l / elements(mode);
	switch (mode) {
	case VEC16_UE4M3: return fabsf(decode(scales, E4M3, tiled(i, j, blocks)));
	case VEC32_UE8M0: {
		const int code = ((const uint8_t *)scales)[tiled(i, j, blocks)];
		return code == 255 ? NAN : ldexpf(1, code - 127);
	}
	case OUTER_VEC: return ((const float *)scales)[i];
	case VEC128: return ((const float *)scales)[j * rows + i];
	case BLK128: return ((const float *)scales)[i / 128 * ceil_div(blocks, 4) * 4 + j];
	}
	return scales ? *(const float *)scales : 1;
}

int padded_with_zeros(int mode, const void *scales, uint64_t rows, uint64_t k) {
	if (mode != VEC16_UE4M3 && mode != VEC32_UE8M0)
		return 1;
	const uint64_t blocks = ceil_div(k, elements(mode));
	for (uint64_t i = 0; i < ceil_div(rows, 128) * 128; i++)
		for (uint64_t j = 0; j < ceil_div(blocks, 4) * 4; j++)
			if ((i >= rows || j >= blocks) && ((const uint8_t *)scales)[tiled(i, j, blocks)])
				return 0;
	return 1;
}
