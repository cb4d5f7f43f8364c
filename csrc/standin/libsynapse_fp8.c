//go:build ignore

// Stand-in for libSynapse.so: sums of FP8 products, as the matrix engine adds them up.
//
// They are fused sums, bit for bit those of package backend/arith's models gaudi2 and
// gaudi3, which says where they are from: a group of products is aligned to the largest
// exponent among them, cut off below 24 bits, and added exactly. Gaudi2 adds the sum of
// 16 to what came before, rounded to nearest. Gaudi3 aligns what came before as a ninth
// term of 8, and rounds toward zero. Groups follow each other along k, which is a choice
// of ours: how the compiler splits k is not published.
//
// Operands are decoded once. A product of two values is exact in F32, and so is its
// multiple of a power of two, of which the conversion to an integer is the part that
// is not cut off.

#define _GNU_SOURCE
#include "libsynapse.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#pragma GCC optimize("O3", "wrapv")

enum {
	COLUMNS = 32,     // that are summed at once
	ROWS = 16,        // that are decoded or summed behind each other
	DEPTH = 256,      // of the part of a panel that stays in the first cache meanwhile
	BITS = 24,        // that are kept below the largest exponent
	NOTHING = -64,    // exponent of zero: with any other's sum it is below every product's
	LEAST_FLOAT = -126, // exponent of the smallest normal F32
};

// What a code counts with: its value, and its exponent, which of a subnormal is at
// least the format's.
typedef struct {
	float value[256];
	int8_t exponent[256];
} table;

static void make_table(table *t, uint32_t type, bool gaudi3) {
	const bool to448 = gaudi3 && setting("STANDIN_E4M3", 448) == 448; // InfNanMode of mme_common_enum.h
	const int least = gaudi3 ? (type == E5M2 ? -16 : -9) : -14;
	for (int code = 0; code < 256; code++) {
		const float x = t->value[code] = fp8_value(type, code, to448);
		const int exponent = x != 0 && isfinite(x) ? ilogbf(x) : NOTHING;
		t->exponent[code] = x != 0 && exponent < least ? least : exponent;
	}
}

// decoded is a product's operands: a by rows, b by panels of COLUMNS, with zeros behind
// the end of k and n.
typedef struct {
	const product *p;
	uint64_t k; // of whole groups
	table table_a, table_b;
	float *a, *b;
	int8_t *exponent_a, *exponent_b;
	bool *finite_a, *finite_b; // of rows, of columns
} decoded;

static void decode_rows(void *data, uint64_t from, uint64_t to) {
	decoded *d = data;
	const product *p = d->p;
	const uint8_t *a = (const uint8_t *)p->a->data + p->at_a;
	for (uint64_t first = from; first < to; first += ROWS) { // of a column as many as share a line of the cache
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
	const product *p = d->p;
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

// power_float is 0 below F32's range and its largest power above.
static inline float power_float(int exponent) {
	const int field = exponent + 127;
	return float_of((field < 0 ? 0 : field > 254 ? 254 : field) << 23);
}

static inline int exponent_of(float x) { return (bits_of(x) >> 23 & 255) - 127; }

// nearest_sum is x + y rounded once to F32, subnormals to zero. Where float64 loses
// some of the sum its last bit is made odd, so that it decides no tie.
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

// toward_zero needs no infinity: no sum of FP8 products is that large.
static inline float toward_zero(double x) {
	const float nearest = x;
	return float_of(bits_of(nearest) - (fabs((double)nearest) > fabs(x))) + 0.0f;
}

// add_to_nearest adds totals, in units of what is cut off below, to sums that are none
// of them subnormal. A total of up to 24 bits is an F32, which F32 adds with one rounding;
// few are longer.
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

// add_toward_zero adds sums, aligned like a product, to totals.
static inline __attribute__((always_inline)) void add_toward_zero(float *restrict c, const int32_t *restrict total, const int32_t *restrict exponent) {
	for (int j = 0; j < COLUMNS; j++)
		c[j] = toward_zero((total[j] + (int32_t)(c[j] * power(BITS - exponent[j]))) * power(exponent[j] - BITS));
}

// fuse adds a group of products to each of COLUMNS sums. Of what is not finite it makes
// nonsense, which its caller replaces.
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
		exponent[j] = e > LEAST_FLOAT ? e : LEAST_FLOAT;
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

// special is a sum in which something is not finite.
static float special(const float *a, const float *b, uint64_t k) {
	double sum = 0;
	for (uint64_t l = 0; l < k; l++)
		sum += (double)a[l] * b[l * COLUMNS];
	return sum != sum ? float_of(0x7fffffff) : sum; // the engine's NaN
}

// multiply_tiles computes tiles of ROWS × COLUMNS, which are counted along rows first.
static void multiply_tiles(void *data, uint64_t from, uint64_t to) {
	const decoded *d = data;
	const product *p = d->p;
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

void multiply_fp8(const product *p) {
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
