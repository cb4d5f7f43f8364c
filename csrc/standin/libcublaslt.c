//go:build ignore

// Stand-in for libcublasLt.so: GEMMs of FP4, FP8, 16-bit and FP32 matrices with FP32 sums, k
// ascending or, in one algorithm, descending. It rejects what NVIDIA's documentation of
// cublasLtMatmul excludes. It uses the streams of the stand-in for the driver, which
// OCTET_LIBCUDA must name. See standin.go.

#define _GNU_SOURCE
#include "libcublaslt.h"

#include <dlfcn.h>
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
	uint64_t workspace;
	uint32_t reductions, alignment[4];
} preference;

typedef struct {
	uint64_t id, workspace, splits, alignment[4], unused;
} algorithm;

typedef struct {
	algorithm algo;
	size_t workspace;
	int state;
	float waves;
	int reserved[4];
} result;

_Static_assert(sizeof(algorithm) == 64 && sizeof(result) == 96, "sizes in cublasLt.h");

// A kernel identifies code that must be loaded before its launch: an algorithm, for given
// sizes, types and transpositions.
typedef struct {
	uint64_t id, m, n, k, types[3], transposed[2];
} kernel;

// driver is a handle: functions of the driver, and the loaded kernels.
typedef struct {
	int (*enqueue)(void *stream, op_run run, const void *data, size_t bytes);
	int (*device)(const void *p, size_t bytes);
	int (*current)(void);
	int (*load)(void);
	pthread_mutex_t lock; // of loaded and count
	kernel *loaded;
	size_t count;
} driver;

size_t cublasLtGetVersion(void) { return setting("STANDIN_CUBLASLT", 130102); }

const char *cublasLtGetStatusString(int status) {
	switch (status) {
	case NOT_INITIALIZED: return "the library was not initialized";
	case INVALID_VALUE: return "an unsupported value or parameter was passed to the function";
	case EXECUTION_FAILED: return "the GPU program failed to execute";
	case NOT_SUPPORTED: return "the requested functionality is not supported";
	}
	return "stand-in error";
}

int cublasLtCreate(void **out) {
	void *library = dlopen(getenv("OCTET_LIBCUDA") ? getenv("OCTET_LIBCUDA") : "libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
	if (!library)
		return NOT_INITIALIZED;
	driver *d = calloc(1, sizeof *d);
	pthread_mutex_init(&d->lock, NULL);
	*(void **)&d->enqueue = dlsym(library, "standin_enqueue");
	*(void **)&d->device = dlsym(library, "standin_device");
	*(void **)&d->current = dlsym(library, "standin_current");
	*(void **)&d->load = dlsym(library, "standin_load");
	if (!d->enqueue || !d->current()) {
		free(d);
		return NOT_INITIALIZED;
	}
	*out = d;
	return SUCCESS;
}

int cublasLtDestroy(void *handle) {
	driver *d = handle;
	pthread_mutex_destroy(&d->lock);
	free(d->loaded);
	free(d);
	return SUCCESS;
}

int cublasLtMatmulDescCreate(description **out, int compute, int scale) {
	*out = calloc(1, sizeof **out);
	(*out)->compute = compute;
	(*out)->scale = scale;
	return SUCCESS;
}

int cublasLtMatmulDescDestroy(description *d) {
	free(d);
	return SUCCESS;
}

int cublasLtMatmulDescSetAttribute(description *d, int attribute, const void *value, size_t bytes) {
	static const struct {
		int attribute, bytes;
	} attributes[ATTRIBUTES] = {[POINTER_MODE] = {2, 4}, [TRANSA] = {3, 4}, [TRANSB] = {4, 4}, [A_SCALE] = {17, 8}, [B_SCALE] = {18, 8},
			       [D_SCALE] = {20, 8}, [AMAX_D] = {21, 8}, [FAST] = {25, 1}, [A_MODE] = {31, 4},
			       [B_MODE] = {32, 4}};
	// Modes exist from CUDA 12.8 on, those of FP32 from 12.9 on.
	if ((attribute == 31 || attribute == 32) && (*(const int *)value >= OUTER_VEC ? 120900 : 120800) > cublasLtGetVersion())
		return INVALID_VALUE;
	for (int i = 0; i < ATTRIBUTES; i++)
		if (attributes[i].attribute == attribute && attributes[i].bytes == (int)bytes) {
			memcpy(&d->value[i], value, bytes);
			return SUCCESS;
		}
	return INVALID_VALUE;
}

int cublasLtMatrixLayoutCreate(layout **out, int type, uint64_t rows, uint64_t cols, int64_t ld) {
	*out = malloc(sizeof **out);
	**out = (layout){type, rows, cols, ld};
	return SUCCESS;
}

int cublasLtMatrixLayoutDestroy(layout *l) {
	free(l);
	return SUCCESS;
}

int cublasLtMatmulPreferenceCreate(preference **out) {
	*out = malloc(sizeof **out);
	**out = (preference){.reductions = 7, .alignment = {256, 256, 256, 256}};
	return SUCCESS;
}

int cublasLtMatmulPreferenceDestroy(preference *p) {
	free(p);
	return SUCCESS;
}

int cublasLtMatmulPreferenceSetAttribute(preference *p, int attribute, const void *value, size_t bytes) {
	if (attribute == 1 && bytes == 8)
		memcpy(&p->workspace, value, 8);
	else if (attribute == 3 && bytes == 4)
		memcpy(&p->reductions, value, 4);
	else if (attribute >= 5 && attribute <= 8 && bytes == 4)
		memcpy(&p->alignment[attribute - 5], value, 4);
	else
		return INVALID_VALUE;
	return SUCCESS;
}

// Checks.

// check returns the error that the heuristic and the matmul have in common, or SUCCESS.
static int check(const description *p, const layout *a, const layout *b, const layout *c, const layout *d) {
	if (!p || !a || !b || !c || !d)
		return INVALID_VALUE;
	const int ta = p->value[TRANSA] != 0, tb = p->value[TRANSB] != 0;
	const uint64_t m = ta ? a->cols : a->rows, n = tb ? b->rows : b->cols, k = ta ? a->rows : a->cols;
	if (k != (tb ? b->cols : b->rows) || m != d->rows || n != d->cols || c->rows != m || c->cols != n)
		return INVALID_VALUE;
	const layout *all[] = {a, b, c, d};
	for (int i = 0; i < 4; i++)
		if (!bits(all[i]->type) || !all[i]->rows || !all[i]->cols || all[i]->ld < (int64_t)all[i]->rows)
			return INVALID_VALUE;
	if (p->compute != 68 || p->scale != F32)
		return NOT_SUPPORTED;

	if (!is_narrow(a->type)) {
		// All types are equal, or 16-bit operands have an FP32 output. Only FP8 matrices
		// have scales.
		if (a->type != b->type || c->type != d->type || (d->type != a->type && d->type != F32))
			return NOT_SUPPORTED;
		return p->value[A_SCALE] || p->value[B_SCALE] || p->value[D_SCALE] || p->value[AMAX_D] || p->value[A_MODE] || p->value[B_MODE] ? NOT_SUPPORTED : SUCCESS;
	}
	const long capability = setting("STANDIN_CAPABILITY", 90);
	if (!is_narrow(b->type) || (a->type == E5M2 && b->type == E5M2) || capability < 89)
		return NOT_SUPPORTED;
	if ((capability < 100 || capability >= 120) && (!ta || tb))
		return NOT_SUPPORTED;
	const int scales = check_scales(p, a, b, d, m, n, k, capability);
	if (scales)
		return scales;
	if (is_narrow(d->type)) {
		if ((c->type != BF16 && c->type != F16) || (d->type == E5M2 && a->type == b->type))
			return NOT_SUPPORTED;
	} else if (c->type != d->type || p->value[D_SCALE] || p->value[AMAX_D]) {
		return NOT_SUPPORTED;
	}
	// The documentation demands only 16 bytes. The library demands multiples of 16 for M and
	// K, for every type of D: its log says "Unsupported M dimension for FP8 matrix
	// multiplication. M must be divisible by 16" (vllm-project/vllm, pull request 4691;
	// likewise NVIDIA/CUDALibrarySamples, issue 172). N is free: PyTorch's _scaled_mm, which
	// decodes single tokens with it, checks only M and K.
	if (m % 16 || k % 16)
		return NOT_SUPPORTED;
	for (int i = 0; i < 4; i++) {
		const int each = bits(all[i]->type);
		if (all[i]->rows * each % 128 || all[i]->ld * each % 128)
			return NOT_SUPPORTED;
	}
	return SUCCESS;
}

int cublasLtMatmulAlgoGetHeuristic(void *handle, const description *p, const layout *a, const layout *b, const layout *c,
				   const layout *d, const preference *preferred, int max_results, result *out, int *found) {
	*found = 0;
	if (!handle || max_results < 1)
		return INVALID_VALUE;
	const int status = check(p, a, b, c, d);
	if (status)
		return status;
	if (setting("STANDIN_ALGORITHMS", 3) < 0) {
		*out = (result){.state = NOT_SUPPORTED};
		*found = 1;
		return SUCCESS;
	}
	// The first needs a workspace, the second splits k, the third sums with k descending.
	static const algorithm known[] = {
		{.id = 1, .workspace = 1 << 20, .splits = 1},
		{.id = 2, .workspace = 4 << 20, .splits = 4},
		{.id = 3, .splits = 1},
	};
	for (int i = 0; i < setting("STANDIN_ALGORITHMS", 3) && *found < max_results; i++) {
		if (known[i].workspace > preferred->workspace || (known[i].splits > 1 && !preferred->reductions))
			continue;
		result r = {.algo = known[i], .workspace = known[i].workspace, .waves = 1};
		for (int j = 0; j < 4; j++)
			r.algo.alignment[j] = preferred->alignment[j];
		out[(*found)++] = r;
	}
	return *found ? SUCCESS : NOT_SUPPORTED;
}

// The real library identifies an algorithm by opaque bytes.
int cublasLtMatmulAlgoCheck(void *handle, const description *p, const layout *a, const layout *b, const layout *c, const layout *d,
			    const algorithm *algo, result *out) {
	const int status = check(p, a, b, c, d);
	if (!handle)
		return NOT_INITIALIZED;
	if (status)
		return status;
	if (algo->id < 1 || algo->id > 3)
		return INVALID_VALUE;
	*out = (result){.workspace = algo->workspace, .waves = 1};
	return SUCCESS;
}

int cublasLtMatmulAlgoConfigGetAttribute(const algorithm *algo, int attribute, void *value, size_t bytes, size_t *written) {
	if (attribute != 2 || bytes != 4)
		return INVALID_VALUE;
	const int32_t splits = algo->splits;
	memcpy(value, &splits, 4);
	*written = 4;
	return SUCCESS;
}

// Execution.

typedef struct {
	const driver *driver;
	description p;
	layout a, b, c, d;
	const void *A, *B, *C;
	void *D;
	void *workspace;
	size_t bytes;
	float alpha, beta;
	const float *factors[2]; // alpha and beta in device memory; NULL: the values above
	int descending;
} matmul;

static uint64_t span(const layout *l) { return ((l->cols - 1) * l->ld + l->rows) * bits(l->type) / 8; }

__attribute__((optimize("O3"))) static void add_scaled(float *restrict sum, const float *restrict a, float b, uint64_t n) {
	for (uint64_t i = 0; i < n; i++)
		sum[i] += a[i] * b;
}

// illegal reports whether the GEMM would read or write outside device memory.
static int illegal(const matmul *x, uint64_t m, uint64_t n, uint64_t k) {
	const driver *r = x->driver;
	const uint64_t *value = x->p.value;
	if (!r->device(x->A, span(&x->a)) || !r->device(x->B, span(&x->b)) || !r->device(x->D, span(&x->d)) ||
	    (x->C && !r->device(x->C, span(&x->c))) || (x->factors[0] && (!r->device(x->factors[0], 4) || !r->device(x->factors[1], 4))) || (x->bytes && !r->device(x->workspace, x->bytes)))
		return 1;
	const uint64_t bytes[] = {scale_bytes(value[A_MODE], m, k), scale_bytes(value[B_MODE], n, k), 4, 4};
	for (int i = A_SCALE; i <= AMAX_D; i++)
		if (value[i] && !r->device((void *)value[i], bytes[i - A_SCALE]))
			return 1;
	return 0;
}

// Sums of products of column j of op(B). Scales of a few elements multiply these; scales of
// rows and of 128 elements multiply the sums in which they are constant.
static void add_column(const matmul *x, const float *a, const float *b, uint64_t j, uint64_t n, uint64_t m, uint64_t k, float *part, float *sum) {
	const uint64_t *value = x->p.value;
	const int mode = value[A_MODE], sums = mode >= OUTER_VEC;
	const uint64_t run = mode >= VEC128 ? 128 : k, runs = (k + run - 1) / run;
	memset(sum, 0, m * sizeof *sum);
	for (uint64_t r = 0; r < runs; r++) {
		const uint64_t from = (x->descending ? runs - 1 - r : r) * run, end = from + run < k ? from + run : k;
		memset(part, 0, m * sizeof *part);
		for (uint64_t l = 0; l < end - from; l++) {
			const uint64_t at = x->descending ? end - 1 - l : from + l;
			add_scaled(part, a + at * m, b[j * k + at], m);
		}
		const float sb = sums ? scale_value(value[B_MODE], (void *)value[B_SCALE], j, from, n, k) : 1;
		for (uint64_t i = 0; i < m; i++)
			sum[i] += sums ? part[i] * (scale_value(mode, (void *)value[A_SCALE], i, from, m, k) * sb) : part[i];
	}
}

static int run_matmul(void *data) {
	const matmul *x = data;
	const uint64_t *value = x->p.value;
	const uint64_t m = x->d.rows, n = x->d.cols, k = value[TRANSA] ? x->a.rows : x->a.cols;
	if (illegal(x, m, n, k))
		return 700; // CUDA_ERROR_ILLEGAL_ADDRESS
	if (!padded_with_zeros(value[A_MODE], (void *)value[A_SCALE], m, k) || !padded_with_zeros(value[B_MODE], (void *)value[B_SCALE], n, k))
		return 719; // CUDA_ERROR_LAUNCH_FAILED
	if (x->bytes) // a workspace keeps no data between calls
		memset(x->workspace, 0xff, x->bytes);
	// a is [k][m], so that a vector holds sums of one column.
	float *a = malloc(m * k * sizeof *a), *b = malloc(n * k * sizeof *b), *sum = malloc(2 * m * sizeof *sum);
	const int inside = value[A_MODE] == VEC16_UE4M3 || value[A_MODE] == VEC32_UE8M0;
	for (uint64_t i = 0; i < m; i++)
		for (uint64_t l = 0; l < k; l++) {
			a[l * m + i] = decode(x->A, x->a.type, value[TRANSA] ? i * x->a.ld + l : l * x->a.ld + i);
			if (inside)
				a[l * m + i] *= scale_value(value[A_MODE], (void *)value[A_SCALE], i, l, m, k);
		}
	for (uint64_t j = 0; j < n; j++)
		for (uint64_t l = 0; l < k; l++) {
			b[j * k + l] = decode(x->B, x->b.type, value[TRANSB] ? l * x->b.ld + j : j * x->b.ld + l);
			if (inside)
				b[j * k + l] *= scale_value(value[B_MODE], (void *)value[B_SCALE], j, l, n, k);
		}
	const int scalar = value[A_MODE] == SCALAR;
	const float alpha = x->factors[0] ? *x->factors[0] : x->alpha, beta = x->factors[1] ? *x->factors[1] : x->beta;
	const float scale = scalar ? alpha * scale_value(SCALAR, (void *)value[A_SCALE], 0, 0, m, k) * scale_value(SCALAR, (void *)value[B_SCALE], 0, 0, n, k) : alpha;
	const float scale_d = scale_value(SCALAR, (void *)value[D_SCALE], 0, 0, m, k);
	float max = 0;
	for (uint64_t j = 0; j < n; j++) {
		add_column(x, a, b, j, n, m, k, sum + m, sum);
		for (uint64_t i = 0; i < m; i++) {
			float v = scale * sum[i];
			if (beta)
				v += beta * decode(x->C, x->c.type, j * x->c.ld + i);
			if (!(fabsf(v) <= max))
				max = fabsf(v);
			encode(x->D, x->d.type, j * x->d.ld + i, v * scale_d);
		}
	}
	if (value[AMAX_D])
		*(float *)value[AMAX_D] = max;
	free(a);
	free(b);
	free(sum);
	return SUCCESS;
}

// load loads a kernel before its first launch, as CUDA's lazy loading does by default. That
// fails in a capture.
static int load(driver *d, const kernel *k) {
	int status = SUCCESS;
	pthread_mutex_lock(&d->lock);
	size_t i = 0;
	while (i < d->count && memcmp(&d->loaded[i], k, sizeof *k))
		i++;
	if (i == d->count && !(status = d->load())) {
		d->loaded = realloc(d->loaded, (i + 1) * sizeof *k);
		d->loaded[d->count++] = *k;
	}
	pthread_mutex_unlock(&d->lock);
	return status;
}

int cublasLtMatmul(void *handle, const description *p, const float *alpha, const void *A, const layout *a, const void *B,
		   const layout *b, const float *beta, const void *C, const layout *c, void *D, const layout *d,
		   const algorithm *algo, void *workspace, size_t bytes, void *stream) {
	const int status = check(p, a, b, c, d);
	if (!handle)
		return NOT_INITIALIZED;
	if (status)
		return status;
	if (!algo || algo->id < 1 || algo->id > 3 || bytes < algo->workspace || (uintptr_t)workspace % 256)
		return INVALID_VALUE;
	if ((long)algo->id == setting("STANDIN_REFUSED", 0))
		return NOT_SUPPORTED;
	const int on_device = p->value[POINTER_MODE] == 1;
	if (p->value[POINTER_MODE] > 1 || !alpha || !beta)
		return INVALID_VALUE;
	if (!A || !B || !D || (!C && (on_device || *beta)) || (C == D && (c->type != d->type || c->ld != d->ld)))
		return INVALID_VALUE;
	const void *pointers[] = {A, B, C, D};
	for (int i = 0; i < 4; i++)
		if ((uintptr_t)pointers[i] % algo->alignment[i] || (is_narrow(a->type) && (uintptr_t)pointers[i] % 16))
			return NOT_SUPPORTED;
	for (int i = A_SCALE; i <= AMAX_D; i++)
		if (p->value[i] % sizeof(float))
			return INVALID_VALUE;
	if ((p->value[A_MODE] && p->value[A_SCALE] % 16) || (p->value[B_MODE] && p->value[B_SCALE] % 16))
		return NOT_SUPPORTED;
	const uint64_t ta = p->value[TRANSA] != 0, tb = p->value[TRANSB] != 0;
	const kernel needed = {algo->id, d->rows, d->cols, ta ? a->rows : a->cols, {a->type, b->type, d->type}, {ta, tb}};
	if (load(handle, &needed))
		return EXECUTION_FAILED;
	matmul x = {handle, *p, *a, *b, *c, *d, A, B, C, D, workspace, algo->workspace, .descending = algo->id == 3};
	if (on_device)
		x.factors[0] = alpha, x.factors[1] = beta;
	else
		x.alpha = *alpha, x.beta = *beta;
	return x.driver->enqueue(stream, run_matmul, &x, sizeof x) ? EXECUTION_FAILED : SUCCESS;
}
