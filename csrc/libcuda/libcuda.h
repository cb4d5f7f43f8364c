// What the shim offers to Go. An entry returns the call that failed and its
// code; code 0 is success. Handles travel as integers, because Go must never
// take a vendor's handle for a pointer of its own. No entry keeps a pointer to
// Go's memory after it returned.
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
	char bus[32];       // "0000:0b:00.0"; empty: not told
	int major, minor;   // compute capability
	int processors;     // multiprocessors
	int shared;         // bytes of shared memory that a block may ask for
	size_t memory;      // bytes
} octet_gpu;

typedef struct {
	const octet_driver *api;
	int id;
	octet_handle context;
	int adopted; // the context is somebody else's
} octet_device;

int octet_version(const octet_driver *api);
const char *octet_error_text(const octet_driver *api, int code);
octet_status octet_count(const octet_driver *api, int *count);
// A device has an ordinal, from 0 on, and an id, which is the driver's own.
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
// With wait the entry returns when the copy is done; without, host has to be
// pinned memory and has to stay as it is until the stream got there.
octet_status octet_upload(const octet_device *d, octet_handle s, uint64_t to, const void *host, size_t bytes, int wait);
octet_status octet_download(const octet_device *d, octet_handle s, void *host, uint64_t from, size_t bytes, int wait);
octet_status octet_event_new(const octet_device *d, octet_handle *out);
octet_status octet_event_free(const octet_device *d, octet_handle e);
octet_status octet_event_record(const octet_device *d, octet_handle s, octet_handle e);
octet_status octet_event_wait(const octet_device *d, octet_handle e);
octet_status octet_event_elapsed(const octet_device *d, octet_handle from, octet_handle to, float *milliseconds);

// module.c

octet_status octet_module_load(const octet_device *d, const void *image, octet_handle *out);
octet_status octet_module_free(const octet_device *d, octet_handle m);
// bytes becomes the size of the kernel's one parameter, -1 where the driver is
// too old to tell, -2 where the kernel has not exactly one.
octet_status octet_function(const octet_device *d, octet_handle m, const char *name, octet_handle *out, int *bytes);
octet_status octet_function_shared(const octet_device *d, octet_handle f, int bytes);
octet_status octet_launch(const octet_device *d, octet_handle f, octet_handle s, unsigned gx, unsigned gy, unsigned gz,
			  unsigned block, unsigned shared, const uint64_t *args, size_t bytes);

// graph.c

octet_status octet_capture_begin(const octet_device *d, octet_handle s);
// Always ends the capture; with discard, without making a graph of it.
octet_status octet_capture_end(const octet_device *d, octet_handle s, int discard, octet_handle *out);
octet_status octet_graph_launch(const octet_device *d, octet_handle g, octet_handle s);
octet_status octet_graph_free(const octet_device *d, octet_handle g);

// nvrtc.c

void octet_nvrtc_builtins(const octet_nvrtc *api, const char *path); // path of the library
octet_status octet_nvrtc_version(const octet_nvrtc *api, int *major, int *minor);
const char *octet_nvrtc_text(const octet_nvrtc *api, int code);
// The architectures that NVRTC compiles for, 90 for sm_90. count becomes how many
// there are; list is filled if it has room for them.
octet_status octet_nvrtc_archs(const octet_nvrtc *api, int room, int *list, int *count);

// What a compilation left: both are for the caller to free. cubin is NULL after
// a failure, log is what the compiler said, also of a success.
typedef struct {
	char *log;
	char *cubin;
	size_t bytes;
} octet_compiled;

octet_status octet_nvrtc_compile(const octet_nvrtc *api, const char *name, const char *source,
				 int headers, const char *const *texts, const char *const *names,
				 int options, const char *const *option, octet_compiled *out);

// cublaslt.c

enum { OCTET_F32, OCTET_BF16, OCTET_F16, OCTET_E4M3, OCTET_E5M2 };

typedef struct {
	int format;
	int64_t ld;
	uint64_t data;
	uint64_t scale; // 0: none
} octet_matrix;

// A product of row-major matrices.
typedef struct {
	int64_t m, n, k;
	int trans_a, trans_b, fast, split;
	float alpha, beta;
	octet_matrix a, b, c, d; // c.data 0: none
	uint64_t amax;           // of d before its scale; 0: not wanted
} octet_gemm;

typedef struct {
	uint64_t data[8]; // cuBLASLt's own
	size_t workspace; // bytes
	int splits;       // parts that k is cut into
} octet_algo;

typedef struct octet_product octet_product;

int octet_cublaslt_version(const octet_cublaslt *api);
const char *octet_cublaslt_text(const octet_cublaslt *api, int code);
octet_status octet_lt_new(const octet_device *d, const octet_cublaslt *api, octet_handle *out);
octet_status octet_lt_free(const octet_device *d, const octet_cublaslt *api, octet_handle lt);
octet_status octet_product_new(const octet_cublaslt *api, const octet_gemm *g, octet_product **out);
void octet_product_free(const octet_cublaslt *api, octet_product *p);
// count comes in as the room in out and leaves as what was found, the best first.
octet_status octet_product_algos(const octet_device *d, const octet_cublaslt *api, octet_handle lt, const octet_product *p,
				 size_t workspace, octet_algo *out, int *count);
// Fills in what cuBLASLt says of an algorithm whose data are from elsewhere.
octet_status octet_product_check(const octet_device *d, const octet_cublaslt *api, octet_handle lt, const octet_product *p,
				 octet_algo *algo);
octet_status octet_product_run(const octet_device *d, const octet_cublaslt *api, octet_handle lt, const octet_product *p,
			       const octet_algo *algo, uint64_t workspace, size_t bytes, octet_handle s);

// nccl.c

int octet_nccl_version(const octet_nccl *api);
const char *octet_nccl_text(const octet_nccl *api, int code);
octet_status octet_comms_new(const octet_nccl *api, int ranks, const int *ordinals, octet_handle *out);
octet_status octet_comm_destroy(const octet_device *d, const octet_nccl *api, octet_handle comm);
octet_status octet_comm_abort(const octet_device *d, const octet_nccl *api, octet_handle comm);
octet_status octet_comm_error(const octet_device *d, const octet_nccl *api, octet_handle comm);

// What a communicator does: n counts bytes, of the reductions numbers of 4
// bytes, as each rank gives them to a gather and gets them from a scatter.
enum octet_meeting { OCTET_SUM_F32, OCTET_MAX_I32, OCTET_SCATTER_SUM_F32, OCTET_GATHER, OCTET_SEND, OCTET_RECV };

octet_status octet_meet(const octet_device *d, const octet_nccl *api, octet_handle comm, octet_handle s,
			enum octet_meeting what, uint64_t from, uint64_t to, size_t n, int peer);

#endif
