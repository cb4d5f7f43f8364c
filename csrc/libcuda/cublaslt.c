//go:build cuda && cgo && linux

#include "libcuda.h"
#include "api.h"

#include <stdlib.h>
#include <string.h>

// cuBLASLt is column-major. A row-major matrix read column-major is its transpose, and D'
// = op(B)'·op(A)': so cuBLASLt gets B as its A, A as its B, n as its m, and the leading
// dimensions unchanged. Its A is transposed if our B is: a weight stored as [n, k] gives
// the TN GEMM that FP8 needs on Ada and Hopper.
struct octet_matmul {
	octet_gemm g;
	cublasLtMatmulDesc_t desc;
	cublasLtMatrixLayout_t a, b, c, d; // a and b are ours, not cuBLASLt's
};

int octet_cublaslt_version(const octet_cublaslt *api) { return (int)api->cublasLtGetVersion(); }

const char *octet_cublaslt_text(const octet_cublaslt *api, int code) {
	const char *text = api->cublasLtGetStatusString((cublasStatus_t)code);
	return text ? text : "an unknown error";
}

octet_status octet_lt_new(const octet_device *d, const octet_cublaslt *api, octet_handle *out) {
	cublasLtHandle_t lt;
	ENTER(d);
	TRY(api, cublasLtCreate, &lt);
	*out = (octet_handle)lt;
	return (octet_status){0};
}

octet_status octet_lt_free(const octet_device *d, const octet_cublaslt *api, octet_handle lt) {
	ENTER(d);
	TRY(api, cublasLtDestroy, (cublasLtHandle_t)lt);
	return (octet_status){0};
}

static const cudaDataType_t types[] = {
	[OCTET_F32] = CUDA_R_32F,      [OCTET_BF16] = CUDA_R_16BF,    [OCTET_F16] = CUDA_R_16F,
	[OCTET_E4M3] = CUDA_R_8F_E4M3, [OCTET_E5M2] = CUDA_R_8F_E5M2, [OCTET_E2M1] = CUDA_R_4F_E2M1,
};

static int narrow(const octet_matrix *m) { return m->format == OCTET_E4M3 || m->format == OCTET_E5M2; }

// layout describes a row-major matrix as a column-major one.
static octet_status layout(const octet_cublaslt *api, const octet_matrix *m, int64_t rows, int64_t cols, cublasLtMatrixLayout_t *out) {
	TRY(api, cublasLtMatrixLayoutCreate, out, types[m->format], cols, rows, m->ld);
	return (octet_status){0};
}

static octet_status describe(const octet_cublaslt *api, octet_matmul *p) {
	const octet_gemm *g = &p->g;
	TRY(api, cublasLtMatmulDescCreate, &p->desc, CUBLAS_COMPUTE_32F, CUDA_R_32F);
#define SET(attribute, value) TRY(api, cublasLtMatmulDescSetAttribute, p->desc, attribute, &(value), sizeof(value))
	// CUBLAS_OP_N is 0, CUBLAS_OP_T 1.
	const int32_t trans_a = !!g->trans_a, trans_b = !!g->trans_b;
	SET(CUBLASLT_MATMUL_DESC_TRANSA, trans_b);
	SET(CUBLASLT_MATMUL_DESC_TRANSB, trans_a);
	if (g->b.scale)
		SET(CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, g->b.scale);
	if (g->a.scale)
		SET(CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, g->a.scale);
	const int32_t device = CUBLASLT_POINTER_MODE_DEVICE;
	if (g->factors)
		SET(CUBLASLT_MATMUL_DESC_POINTER_MODE, device);
	if (g->d.scale)
		SET(CUBLASLT_MATMUL_DESC_D_SCALE_POINTER, g->d.scale);
	// CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F, 0, is the default, and the only mode before
	// CUDA 12.8.
	const int32_t mode_a = g->b.mode, mode_b = g->a.mode;
	if (mode_a)
		SET(CUBLASLT_MATMUL_DESC_A_SCALE_MODE, mode_a);
	if (mode_b)
		SET(CUBLASLT_MATMUL_DESC_B_SCALE_MODE, mode_b);
	if (g->amax)
		SET(CUBLASLT_MATMUL_DESC_AMAX_D_POINTER, g->amax);
	if (narrow(&g->a)) { // no effect for other formats
		const int8_t fast = !!g->fast;
		SET(CUBLASLT_MATMUL_DESC_FAST_ACCUM, fast);
	}
#undef SET
	octet_status status = layout(api, &g->a, g->trans_a ? g->k : g->m, g->trans_a ? g->m : g->k, &p->a);
	if (!status.code)
		status = layout(api, &g->b, g->trans_b ? g->n : g->k, g->trans_b ? g->k : g->n, &p->b);
	if (!status.code)
		status = layout(api, &g->c, g->m, g->n, &p->c);
	if (!status.code)
		status = layout(api, &g->d, g->m, g->n, &p->d);
	return status;
}

octet_status octet_matmul_new(const octet_cublaslt *api, const octet_gemm *g, octet_matmul **out) {
	octet_matmul *p = calloc(1, sizeof *p);
	if (!p)
		return (octet_status){"calloc", 3}; // CUBLAS_STATUS_ALLOC_FAILED
	p->g = *g;
	// cuBLASLt needs a C layout even if beta is 0: D's, which it does not read. An FP8 D
	// needs a 16-bit C, so it gets one with a null address.
	if (!g->c.data) {
		p->g.c = (octet_matrix){.format = g->d.format, .ld = g->d.ld, .data = g->d.data};
		if (narrow(&g->d))
			p->g.c = (octet_matrix){.format = OCTET_BF16, .ld = g->d.ld};
	}
	const octet_status status = describe(api, p);
	if (status.code) {
		octet_matmul_free(api, p);
		return status;
	}
	*out = p;
	return status;
}

void octet_matmul_free(const octet_cublaslt *api, octet_matmul *p) {
	const cublasLtMatrixLayout_t layouts[] = {p->a, p->b, p->c, p->d};
	for (int i = 0; i < 4; i++)
		if (layouts[i])
			api->cublasLtMatrixLayoutDestroy(layouts[i]);
	if (p->desc)
		api->cublasLtMatmulDescDestroy(p->desc);
	free(p);
}

// alignment is the largest power of two that divides an address, at most 256. cuBLASLt's
// preference is the minimum alignment that algorithms may rely on; its default is 256.
static uint32_t alignment(uint64_t address) {
	const uint64_t lowest = address & -address;
	return lowest && lowest < 256 ? (uint32_t)lowest : 256;
}

static octet_status set_preference(const octet_cublaslt *api, cublasLtMatmulPreference_t preference, const octet_gemm *g, size_t workspace) {
	const uint64_t bytes = workspace;
	const uint32_t reductions = CUBLASLT_REDUCTION_SCHEME_NONE; // no split-k: it sums parts in an order of its own
	const uint32_t a = alignment(g->b.data), b = alignment(g->a.data), c = alignment(g->c.data), d = alignment(g->d.data);
#define SET(attribute, value) TRY(api, cublasLtMatmulPreferenceSetAttribute, preference, attribute, &(value), sizeof(value))
	SET(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, bytes);
	if (!g->split)
		SET(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, reductions);
	SET(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, a);
	SET(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, b);
	SET(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, c);
	SET(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, d);
#undef SET
	return (octet_status){0};
}

static octet_status read_algo(const octet_cublaslt *api, const cublasLtMatmulHeuristicResult_t *of, const cublasLtMatmulAlgo_t *algo,
			 octet_algo *out) {
	int32_t splits = 0;
	size_t written;
	TRY(api, cublasLtMatmulAlgoConfigGetAttribute, algo, CUBLASLT_ALGO_CONFIG_SPLITK_NUM, &splits, sizeof splits, &written);
	memcpy(out->data, algo, sizeof out->data);
	out->workspace = of->workspaceSize;
	out->splits = splits > 1 ? splits : 1;
	return (octet_status){0};
}

enum { MAX_ALGOS = 32 };

static octet_status heuristic(const octet_cublaslt *api, octet_handle lt, const octet_matmul *p, cublasLtMatmulPreference_t preference,
			octet_algo *out, int *count) {
	cublasLtMatmulHeuristicResult_t results[MAX_ALGOS];
	int found = 0;
	TRY(api, cublasLtMatmulAlgoGetHeuristic, (cublasLtHandle_t)lt, p->desc, p->b, p->a, p->c, p->d, preference,
	    *count < MAX_ALGOS ? *count : MAX_ALGOS, results, &found);
	*count = 0;
	for (int i = 0; i < found; i++) {
		if (results[i].state) // not usable
			continue;
		const octet_status status = read_algo(api, &results[i], &results[i].algo, &out[(*count)++]);
		if (status.code)
			return status;
	}
	return (octet_status){0};
}

octet_status octet_matmul_algos(const octet_device *d, const octet_cublaslt *api, octet_handle lt, const octet_matmul *p,
				 size_t workspace, octet_algo *out, int *count) {
	cublasLtMatmulPreference_t preference;
	ENTER(d);
	TRY(api, cublasLtMatmulPreferenceCreate, &preference);
	octet_status status = set_preference(api, preference, &p->g, workspace);
	if (!status.code)
		status = heuristic(api, lt, p, preference, out, count);
	api->cublasLtMatmulPreferenceDestroy(preference);
	return status;
}

octet_status octet_matmul_check(const octet_device *d, const octet_cublaslt *api, octet_handle lt, const octet_matmul *p,
				 octet_algo *algo) {
	cublasLtMatmulAlgo_t given;
	cublasLtMatmulHeuristicResult_t result = {0};
	memcpy(&given, algo->data, sizeof given);
	ENTER(d);
	TRY(api, cublasLtMatmulAlgoCheck, (cublasLtHandle_t)lt, p->desc, p->b, p->a, p->c, p->d, &given, &result);
	return read_algo(api, &result, &given, algo);
}

octet_status octet_matmul_run(const octet_device *d, const octet_cublaslt *api, octet_handle lt, const octet_matmul *p,
			       const octet_algo *algo, uint64_t workspace, size_t bytes, octet_handle s) {
	const octet_gemm *g = &p->g;
	cublasLtMatmulAlgo_t chosen;
	memcpy(&chosen, algo->data, sizeof chosen);
	const float *alpha = &g->alpha, *beta = &g->beta;
	if (g->factors)
		alpha = (const float *)g->factors, beta = alpha + 1;
	ENTER(d);
	TRY(api, cublasLtMatmul, (cublasLtHandle_t)lt, p->desc, alpha, (const void *)g->b.data, p->b,
	    (const void *)g->a.data, p->a, beta, (const void *)g->c.data, p->c, (void *)g->d.data, p->d, &chosen,
	    (void *)workspace, bytes, (cudaStream_t)s);
	return (octet_status){0};
}
