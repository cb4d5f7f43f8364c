// The shim's interface to Go. An entry returns the failed call and its code; code 0 is
// success. Handles are passed as integers, because Go must never treat a vendor's handle
// as a Go pointer. No entry keeps a pointer to Go's memory after it returns.
#ifndef OCTET_LIBCUDA_H
#define OCTET_LIBCUDA_H

#include <stddef.h>
#include <stdint.h>

typedef struct {
	const char *call; // of static lifetime
	int code;
} octet_status;

typedef uintptr_t octet_handle;

// Tables of the functions of a loaded library.
typedef struct octet_driver octet_driver;
typedef struct octet_nvrtc octet_nvrtc;
typedef struct octet_cublaslt octet_cublaslt;
typedef struct octet_nccl octet_nccl;

// driver.c

typedef struct {
	char name[256];
	char bus[32];       // "0000:0b:00.0"; empty: not reported
	int major, minor;   // compute capability
	int processors;     // multiprocessors
	int shared;         // maximum bytes of shared memory per block
	size_t memory;      // bytes
} octet_gpu;

typedef struct {
	const octet_driver *api;
	int id;
	octet_handle context;
	int adopted; // other code owns the context
} octet_device;

int octet_version(const octet_driver *api);
const char *octet_error_text(const octet_driver *api, int code);
octet_status octet_count(const octet_driver *api, int *count);
// A device has an ordinal, counted from 0, and the driver's id.
octet_status octet_id(const octet_driver *api, int ordinal, int *id);
octet_status octet_describe(const octet_driver *api, int id, octet_gpu *out);
octet_status octet_open(const octet_driver *api, int ordinal, octet_device *out);
octet_status octet_adopt(const octet_driver *api, octet_handle context, octet_device *out);
octet_status octet_close(const octet_device *d);
octet_status octet_memory(const octet_device *d, size_t *free, size_t *total);
octet_status octet_alloc(const octet_device *d, size_t bytes, uint64_t *out);
octet_status octet_free(const octet_device *d, uint64_t p);
octet_status octet_pin(const octet_device *d, size_t bytes, void **out);
octet_status octet_unpin(const octet_device *d, void *p);

// stream.c

octet_status octet_stream_new(const octet_device *d, octet_handle *out);
octet_status octet_stream_free(const octet_device *d, octet_handle s);
octet_status octet_stream_wait(const octet_device *d, octet_handle s);
octet_status octet_stream_query(const octet_device *d, octet_handle s, int *idle);
octet_status octet_fill(const octet_device *d, octet_handle s, uint64_t to, uint8_t value, size_t bytes);
octet_status octet_copy(const octet_device *d, octet_handle s, uint64_t to, uint64_t from, size_t bytes);
// With wait the entry returns when the copy is done. Without it, host must be pinned
// memory that does not change before the stream has executed the copy.
octet_status octet_upload(const octet_device *d, octet_handle s, uint64_t to, const void *host, size_t bytes, int wait);
octet_status octet_download(const octet_device *d, octet_handle s, void *host, uint64_t from, size_t bytes, int wait);
octet_status octet_event_new(const octet_device *d, int timing, octet_handle *out);
octet_status octet_event_free(const octet_device *d, octet_handle e);
octet_status octet_event_record(const octet_device *d, octet_handle s, octet_handle e);
octet_status octet_stream_wait_event(const octet_device *d, octet_handle s, octet_handle e);
octet_status octet_event_wait(const octet_device *d, octet_handle e);
octet_status octet_event_elapsed(const octet_device *d, octet_handle from, octet_handle to, float *milliseconds);

// module.c

octet_status octet_module_load(const octet_device *d, const void *image, octet_handle *out);
octet_status octet_module_free(const octet_device *d, octet_handle m);
// bytes becomes the size of the kernel's one parameter, -1 if the driver is too old to
// report it, -2 if the kernel has not exactly one.
octet_status octet_function(const octet_device *d, octet_handle m, const char *name, octet_handle *out, int *bytes);
octet_status octet_function_shared(const octet_device *d, octet_handle f, int bytes);
octet_status octet_launch(const octet_device *d, octet_handle f, octet_handle s, unsigned gx, unsigned gy, unsigned gz,
			  unsigned block, unsigned shared, const uint64_t *args, size_t bytes);

// graph.c

octet_status octet_capture_begin(const octet_device *d, octet_handle s);
// Always ends the capture; with discard, without making a graph.
octet_status octet_capture_end(const octet_device *d, octet_handle s, int discard, octet_handle *out);
octet_status octet_graph_launch(const octet_device *d, octet_handle g, octet_handle s);
octet_status octet_graph_free(const octet_device *d, octet_handle g);

// nvrtc.c

void octet_nvrtc_builtins(const octet_nvrtc *api, const char *path); // path of the library
octet_status octet_nvrtc_version(const octet_nvrtc *api, int *major, int *minor);
const char *octet_nvrtc_text(const octet_nvrtc *api, int code);
// The architectures that NVRTC supports, 90 for sm_90. count becomes their number; list
// is filled if it has capacity for all.
octet_status octet_nvrtc_archs(const octet_nvrtc *api, int capacity, int *list, int *count);

// Results of a compilation, which the caller frees. cubin is NULL after a failure; log is
// the compiler's, also after success.
typedef struct {
	char *log;
	char *cubin;
	size_t bytes;
} octet_compiled;

octet_status octet_nvrtc_compile(const octet_nvrtc *api, const char *name, const char *source,
				 int headers, const char *const *texts, const char *const *names,
				 int options, const char *const *option, octet_compiled *out);

// cublaslt.c

enum { OCTET_F32, OCTET_BF16, OCTET_F16, OCTET_E4M3, OCTET_E5M2, OCTET_E2M1 };

typedef struct {
	int format;
	int64_t ld;
	uint64_t data;
	uint64_t scale; // 0: none
	int mode;       // of the scales of a and b: cublasLtMatmulMatrixScale_t
} octet_matrix;

// A GEMM of row-major matrices.
typedef struct {
	int64_t m, n, k;
	int trans_a, trans_b, fast, split;
	float alpha, beta;
	uint64_t factors;        // alpha and beta in device memory; 0: the fields
	octet_matrix a, b, c, d; // c.data 0: no C
	uint64_t amax;           // of d before its scale; 0: no amax
} octet_gemm;

typedef struct {
	uint64_t data[8]; // opaque to the shim
	size_t workspace; // bytes
	int splits;       // parts into which k is split
} octet_algo;

typedef struct octet_matmul octet_matmul;

int octet_cublaslt_version(const octet_cublaslt *api);
const char *octet_cublaslt_text(const octet_cublaslt *api, int code);
octet_status octet_lt_new(const octet_device *d, const octet_cublaslt *api, octet_handle *out);
octet_status octet_lt_free(const octet_device *d, const octet_cublaslt *api, octet_handle lt);
octet_status octet_matmul_new(const octet_cublaslt *api, const octet_gemm *g, octet_matmul **out);
void octet_matmul_free(const octet_cublaslt *api, octet_matmul *p);
// count is the capacity of out, and becomes the number of algorithms found, the best
// first.
octet_status octet_matmul_algos(const octet_device *d, const octet_cublaslt *api, octet_handle lt, const octet_matmul *p,
				 size_t workspace, octet_algo *out, int *count);
// Fills in the properties of an algorithm from its stored data.
octet_status octet_matmul_check(const octet_device *d, const octet_cublaslt *api, octet_handle lt, const octet_matmul *p,
				 octet_algo *algo);
octet_status octet_matmul_run(const octet_device *d, const octet_cublaslt *api, octet_handle lt, const octet_matmul *p,
			       const octet_algo *algo, uint64_t workspace, size_t bytes, octet_handle s);

// nccl.c

int octet_nccl_version(const octet_nccl *api);
const char *octet_nccl_text(const octet_nccl *api, int code);
enum { OCTET_NCCL_ID = 128 };
octet_status octet_nccl_id(const octet_nccl *api, char id[OCTET_NCCL_ID]);
octet_status octet_comm_new(const octet_device *d, const octet_nccl *api, const char id[OCTET_NCCL_ID], int rank, int ranks, octet_handle *out);
octet_status octet_comm_destroy(const octet_device *d, const octet_nccl *api, octet_handle comm);
octet_status octet_comm_abort(const octet_device *d, const octet_nccl *api, octet_handle comm);
octet_status octet_comm_error(const octet_device *d, const octet_nccl *api, octet_handle comm);

// The operations of a communicator. n counts bytes, or 4-byte elements for reductions:
// the input of a rank for a gather, the output for a scatter.
enum octet_collective_kind { OCTET_SUM_F32, OCTET_MAX_I32, OCTET_SCATTER_SUM_F32, OCTET_GATHER };

octet_status octet_collective(const octet_device *d, const octet_nccl *api, octet_handle comm, octet_handle s,
			enum octet_collective_kind what, uint64_t from, uint64_t to, size_t n);
octet_status octet_all_to_all(const octet_device *d, const octet_nccl *api, octet_handle comm, octet_handle s, int ranks,
			uint64_t from, uint64_t to, size_t n);

#endif
