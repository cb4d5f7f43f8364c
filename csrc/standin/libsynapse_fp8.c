//go:build ignore

// Stand-in for libSynapse.so: FP8 GEMMs with the arithmetic of the matrix engine.
//
// The fused sums have the bits of package backend/arith's models gaudi2 and gaudi3, which
// name their sources: a group of products is aligned to its largest exponent, truncated to
// 24 bits below it, and added exactly. Gaudi2 adds the sum of 16 products to the addend,
// rounded to nearest. Gaudi3 aligns the addend as a ninth term of 8 products, and rounds
// toward zero. Groups are in ascending order of k, an assumption: how the compiler splits k
// is not published.
//
// Operands are decoded once. A product of two values is exact in F32, and so is its
// multiple by a power of two, which the conversion to an integer truncates.

#define _GNU_SOURCE
#include "libsynapse.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#pragma GCC optimize("O3", "wrapv")

enum {
	COLUMNS = 32,       // of a tile, summed in vectors
	ROWS = 16,          // of a tile, decoded or summed one after the other
	DEPTH = 256,        // k per pass, so that a panel's part stays in the L1 cache
	BITS = 24,          // kept below the largest exponent
	ZERO_EXPONENT = -64, // of 0: plus any other exponent it is below every product's
	MIN_EXPONENT = -126, // of normal F32
};

// The value of a code, and the exponent with which it is aligned, at least the format's
// minimum.
typedef struct {
	float value[256];
	int8_t exponent[256];
} table;

static void make_table(table *t, uint32_t type, bool gaudi3) {
	const bool to448 = gaudi3 && setting("STANDIN_E4M3", 448) == 448; // InfNanMode of mme_common_enum.h
	const int min_exponent = gaudi3 ? (type == E5M2 ? -16 : -9) : -14;
	for (int code = 0; code < 256; code++) {
		const float x = t->value[code] = fp8_value(type, code, to448);
		const int exponent = x != 0 && isfinite(x) ? ilogbf(x) : ZERO_EXPONENT;
		t->exponent[code] = x != 0 && exponent < min_exponent ? min_exponent : exponent;
	}
}

// decoded has a GEMM's operands: rows of a, and panels of COLUMNS columns of b, padded with
// zeros along k and n.
typedef struct {
	const matmul *p;
	uint64_t k; // rounded up to whole groups
	table table_a, table_b;
	float *a, *b;
	int8_t *exponent_a, *exponent_b;
	bool *finite_a, *finite_b; // of rows, of columns
} decoded;

static void decode_rows(void *data, uint64_t from, uint64_t to) {
	decoded *d = data;
	const matmul *p = d->p;
	const uint8_t *a = (const uint8_t *)p->a->data + p->at_a;
	for (uint64_t first = from; first < to; first += ROWS) { // ROWS elements of a column share a cache line
		const uint64_t last = first + ROWS < to ? first + ROWS : to;
		for (uint64_t i = first; i < last; i++)
			d->finite_a[i] = true;
		for (uint64_t l = 0; l < d->k; l++)
			for (uint64_t i = first; i < last; i++) {
				const uint8_t code = l < p->k ? a[i * p->a_row + l * p->a_column] : 0;
				const float x = d->a[i * d->k + l] = d->table_a.value[code];
				d->exponent_a[i * d->k + l] = d->table_a.exponent[code];
				d->finite_a[i] &= x - x == 0;
			}
	}
}

static void decode_panels(void *data, uint64_t from, uint64_t to) {
	decoded *d = data;
	const matmul *p = d->p;
	const uint8_t *b = (const uint8_t *)p->b->data + p->at_b;
	for (uint64_t panel = from; panel < to; panel++) {
		const uint64_t first = panel * COLUMNS, n = p->n - first < COLUMNS ? p->n - first : COLUMNS;
		float *value = d->b + first * d->k;
		int8_t *exponent = d->exponent_b + first * d->k;
		bool *finite = d->finite_b + first;
		memset(finite, true, COLUMNS);
		for (uint64_t l = 0; l < d->k; l++)
			for (uint64_t j = 0; j < COLUMNS; j++) {
				const uint8_t code = l < p->k && j < n ? b[l * p->b_row + (first + j) * p->b_column] : 0;
				const float x = value[l * COLUMNS + j] = d->table_b.value[code];
				exponent[l * COLUMNS + j] = d->table_b.exponent[code];
				finite[j] &= x - x == 0;
			}
	}
}

static inline double power(int exponent) {
	const int64_t bits = (int64_t)(exponent + 1023) << 52;
	double x;
	memcpy(&x, &bits, sizeof x);
	return x;
}

// power_float returns 2^exponent, 0 below F32's range, and the largest power above it.
static inline float power_float(int exponent) {
	const int field = exponent + 127;
	return float_of((field < 0 ? 0 : field > 254 ? 254 : field) << 23);
}

static inline int exponent_of(float x) { return (bits_of(x) >> 23 & 255) - 127; }

// nearest_sum returns x + y rounded once to F32, with subnormals flushed to zero. If float64
// loses bits of the sum, its last bit becomes odd, so that the second rounding sees no tie.
static inline float nearest_sum(double x, double y) {
	double sum = x + y;
	const double part = sum - x;
	const double rest = (x - (sum - part)) + (y - part);
	uint64_t bits, lost; // of sum, and of rest
	memcpy(&bits, &sum, sizeof bits);
	memcpy(&lost, &rest, sizeof lost);
	const uint64_t inwards = (bits ^ lost) >> 63;
	bits += lost << 1 != 0 && !(bits & 1) ? 1 - 2 * inwards : 0;
	memcpy(&sum, &bits, sizeof sum);
	const float z = sum;
	return fabsf(z) >= 0x1p-126f ? z : 0;
}

// toward_zero rounds to F32 toward zero. No sum of FP8 products overflows.
static inline float toward_zero(double x) {
	const float nearest = x;
	return float_of(bits_of(nearest) - (fabs((double)nearest) > fabs(x))) + 0.0f;
}

// add_to_nearest adds totals, in units of 2^(exponent - BITS), to sums, which are not
// subnormal. A total of up to 24 bits is exact in F32, so the addition rounds once; longer
// totals are rare.
static inline __attribute__((always_inline)) void add_to_nearest(float *restrict c, const int32_t *restrict total, const int32_t *restrict exponent) {
	float sum[COLUMNS];
	int32_t longer[COLUMNS], any = 0;
	for (int j = 0; j < COLUMNS; j++) {
		const float term = total[j], x = c[j] + term * power_float(exponent[j] - BITS);
		sum[j] = fabsf(x) >= 0x1p-126f ? x : 0;
		longer[j] = (int32_t)term != total[j];
		any |= longer[j];
	}
	for (int j = 0; j < COLUMNS && any; j++)
		if (longer[j])
			sum[j] = nearest_sum(total[j] * power(exponent[j] - BITS), c[j]);
	memcpy(c, sum, sizeof sum);
}

// add_toward_zero adds sums, aligned like products, to totals.
static inline __attribute__((always_inline)) void add_toward_zero(float *restrict c, const int32_t *restrict total, const int32_t *restrict exponent) {
	for (int j = 0; j < COLUMNS; j++)
		c[j] = toward_zero((total[j] + (int32_t)(c[j] * power(BITS - exponent[j]))) * power(exponent[j] - BITS));
}

// fuse adds a group of products to each of COLUMNS sums. Results with non-finite operands
// are wrong; the caller replaces them.
static inline __attribute__((always_inline)) void fuse(float *restrict c, const float *restrict a, const int8_t *restrict exponent_a, const float *restrict b, const int8_t *restrict exponent_b, int group, bool gaudi3) {
	int8_t largest[COLUMNS];
	int32_t exponent[COLUMNS], total[COLUMNS] = {0};
	float multiple[COLUMNS];
	for (int j = 0; j < COLUMNS; j++)
		largest[j] = exponent_a[0] + exponent_b[j];
	for (int l = 1; l < group; l++)
		for (int j = 0; j < COLUMNS; j++) {
			const int8_t e = exponent_a[l] + exponent_b[l * COLUMNS + j];
			largest[j] = e > largest[j] ? e : largest[j];
		}
	for (int j = 0; j < COLUMNS; j++) {
		int e = largest[j];
		if (gaudi3)
			e = e > exponent_of(c[j]) ? e : exponent_of(c[j]);
		exponent[j] = e > MIN_EXPONENT ? e : MIN_EXPONENT;
		multiple[j] = power_float(BITS - exponent[j]);
	}
	for (int l = 0; l < group; l++)
		for (int j = 0; j < COLUMNS; j++) // a product's significand is below 4
			total[j] += (int32_t)(a[l] * b[l * COLUMNS + j] * multiple[j]);
	if (gaudi3)
		add_toward_zero(c, total, exponent);
	else
		add_to_nearest(c, total, exponent);
}

WIDE static void fuse_gaudi2(float *restrict c, const float *restrict a, const int8_t *restrict exponent_a, const float *restrict b, const int8_t *restrict exponent_b, uint64_t k) {
	for (uint64_t l = 0; l < k; l += 16)
		fuse(c, a + l, exponent_a + l, b + l * COLUMNS, exponent_b + l * COLUMNS, 16, false);
}

WIDE static void fuse_gaudi3(float *restrict c, const float *restrict a, const int8_t *restrict exponent_a, const float *restrict b, const int8_t *restrict exponent_b, uint64_t k) {
	for (uint64_t l = 0; l < k; l += 8)
		fuse(c, a + l, exponent_a + l, b + l * COLUMNS, exponent_b + l * COLUMNS, 8, true);
}

// special returns a sum with non-finite operands.
static float special(const float *a, const float *b, uint64_t k) {
	double sum = 0;
	for (uint64_t l = 0; l < k; l++)
		sum += (double)a[l] * b[l * COLUMNS];
	return sum != sum ? float_of(0x7fffffff) : sum; // the engine's NaN
}

// multiply_tiles computes tiles of ROWS × COLUMNS. Tile numbers go down a column of tiles
// first.
static void multiply_tiles(void *data, uint64_t from, uint64_t to) {
	const decoded *d = data;
	const matmul *p = d->p;
	const uint64_t k = d->k, down = (p->m - 1) / ROWS + 1;
	for (uint64_t tile = from; tile < to; tile++) {
		const uint64_t row = tile % down * ROWS, column = tile / down * COLUMNS;
		const uint64_t m = p->m - row < ROWS ? p->m - row : ROWS, n = p->n - column < COLUMNS ? p->n - column : COLUMNS;
		const float *a = d->a + row * k, *b = d->b + column * k;
		const int8_t *exponent_a = d->exponent_a + row * k, *exponent_b = d->exponent_b + column * k;
		float c[ROWS][COLUMNS] = {0};
		for (uint64_t l = 0; l < k; l += DEPTH)
			for (uint64_t i = 0; i < m; i++)
				(p->gaudi3 ? fuse_gaudi3 : fuse_gaudi2)(c[i], a + i * k + l, exponent_a + i * k + l, b + l * COLUMNS, exponent_b + l * COLUMNS, k - l < DEPTH ? k - l : DEPTH);
		for (uint64_t i = 0; i < m; i++)
			for (uint64_t j = 0; j < n; j++)
				p->out[(row + i) * p->n + column + j] = d->finite_a[row + i] && d->finite_b[column + j] ? c[i][j] : special(a + i * k, b + j, p->k);
	}
}

void multiply_fp8(const matmul *p) {
	const int group = p->gaudi3 ? 8 : 16;
	const uint64_t k = (p->k + group - 1) / group * group, panels = (p->n - 1) / COLUMNS + 1, n = panels * COLUMNS;
	decoded d = {.p = p, .k = k};
	make_table(&d.table_a, p->a->type, p->gaudi3);
	make_table(&d.table_b, p->b->type, p->gaudi3);
	d.a = malloc((p->m + n) * k * sizeof *d.a);
	d.b = d.a + p->m * k;
	d.exponent_a = malloc((p->m + n) * (k + sizeof *d.finite_a));
	d.exponent_b = d.exponent_a + p->m * k;
	d.finite_a = (bool *)d.exponent_b + n * k;
	d.finite_b = d.finite_a + p->m;
	parallel(p->m, 1 + SMALL / k, decode_rows, &d);
	parallel(panels, 1 + SMALL / k / COLUMNS, decode_panels, &d);
	parallel(((p->m - 1) / ROWS + 1) * panels, 1 + SMALL / k / (ROWS * COLUMNS), multiply_tiles, &d);
	free(d.a);
	free(d.exponent_a);
}
