// The shim's interface for Go. A function returns the failed call and its code; code 0 is
// success. Handles are passed as integers, because Go must not treat a vendor's handle as
// a Go pointer. No function keeps a pointer to Go memory after it returns.
#ifndef OCTET_LIBSYNAPSE_H
#define OCTET_LIBSYNAPSE_H

#include <stddef.h>
#include <stdint.h>

typedef struct {
	const char *call; // of static lifetime
	int code;
} octet_syn_status;

typedef uintptr_t octet_syn_handle;

// Tables of the functions of a loaded library.
typedef struct octet_synapse octet_synapse;
typedef struct octet_hlml octet_hlml;

// signals.c

// The process's signal handlers, and the calling thread's signal stack. Both calls must
// be on the same thread.
typedef struct octet_syn_signals octet_syn_signals;

octet_syn_signals *octet_syn_signals_keep(void);
void octet_syn_signals_restore(octet_syn_signals *s); // frees s

// device.c

typedef struct {
	char name[256], bus[64];
	int type;
	uint64_t align; // of addresses, bytes
} octet_syn_description;

octet_syn_status octet_syn_initialize(const octet_synapse *api);
octet_syn_status octet_syn_version(const octet_synapse *api, char *out, size_t bytes);
void octet_synapse_text(const octet_synapse *api, int code, char *out, size_t bytes);
octet_syn_status octet_syn_count(const octet_synapse *api, uint32_t *devices, uint32_t *gaudi2, uint32_t *gaudi3);
octet_syn_status octet_syn_acquire(const octet_synapse *api, int module, uint32_t *device); // -1: any
octet_syn_status octet_syn_release(const octet_synapse *api, uint32_t device);
octet_syn_status octet_syn_describe(const octet_synapse *api, uint32_t device, octet_syn_description *out);
octet_syn_status octet_syn_memory(const octet_synapse *api, uint32_t device, uint64_t *free, uint64_t *total);
octet_syn_status octet_syn_alloc(const octet_synapse *api, uint32_t device, uint64_t bytes, uint64_t *out);
octet_syn_status octet_syn_free(const octet_synapse *api, uint32_t device, uint64_t p);
octet_syn_status octet_syn_host_alloc(const octet_synapse *api, uint32_t device, uint64_t bytes, void **out);
octet_syn_status octet_syn_host_free(const octet_synapse *api, uint32_t device, void *p);

// stream.c

octet_syn_status octet_syn_stream_new(const octet_synapse *api, uint32_t device, octet_syn_handle *out);
octet_syn_status octet_syn_stream_free(const octet_synapse *api, octet_syn_handle s);
octet_syn_status octet_syn_stream_wait(const octet_synapse *api, octet_syn_handle s);
octet_syn_status octet_syn_fill(const octet_synapse *api, octet_syn_handle s, uint64_t to, uint8_t value, uint64_t bytes);
octet_syn_status octet_syn_copy(const octet_synapse *api, octet_syn_handle s, uint64_t to, uint64_t from, uint64_t bytes);
octet_syn_status octet_syn_copy_in(const octet_synapse *api, octet_syn_handle s, uint64_t to, const void *from, uint64_t bytes);
octet_syn_status octet_syn_copy_out(const octet_synapse *api, octet_syn_handle s, void *to, uint64_t from, uint64_t bytes);
octet_syn_status octet_syn_event_new(const octet_synapse *api, uint32_t device, octet_syn_handle *out);
octet_syn_status octet_syn_event_free(const octet_synapse *api, octet_syn_handle e);
octet_syn_status octet_syn_event_record(const octet_synapse *api, octet_syn_handle s, octet_syn_handle e);
octet_syn_status octet_syn_event_elapsed(const octet_synapse *api, octet_syn_handle from, octet_syn_handle to, uint64_t *nanoseconds);

// graph.c: a graph in flat arrays. Offsets count from the start of the bytes or of the
// indexes passed with the graph.

enum { OCTET_MAX_RANK = 5, OCTET_TENSOR_NAME = 24 };

typedef struct {
	uint64_t sizes[OCTET_MAX_RANK]; // fastest-changing first
	uint64_t offset;                // in its section
	uint64_t data, data_bytes;      // a constant's contents: offset in the bytes, and length; length 0: none
	uint32_t dims, type;
	int32_t section; // -1: none
} octet_syn_tensor;

typedef struct {
	uint64_t guid, name;           // offsets of strings in the bytes
	uint64_t params, params_bytes; // offset in the bytes, and length; length 0: none
	uint32_t in, ins, out, outs;   // operands: offset in the indexes, and count
	uint32_t after, afters;        // control edges: offset of node indexes, and count
} octet_syn_node;

// The node or tensor at which building a graph failed; -1: none.
typedef struct {
	int node, tensor;
} octet_syn_place;

octet_syn_status octet_syn_compile(const octet_synapse *api, int type, const char *recipe, uint32_t sections, uint32_t tensors,
			   const octet_syn_tensor *tensor, uint32_t nodes, const octet_syn_node *node, const int32_t *indexes,
			   const char *bytes, octet_syn_place *where, octet_syn_handle *out);

// recipe.c

// The tensor infos of a recipe's launches, prepared once.
typedef struct octet_syn_launch_info octet_syn_launch_info;

octet_syn_status octet_syn_recipe_load(const octet_synapse *api, const char *path, octet_syn_handle *out);
octet_syn_status octet_syn_recipe_save(const octet_synapse *api, octet_syn_handle r, const char *path);
octet_syn_status octet_syn_recipe_free(const octet_synapse *api, octet_syn_handle r);
// Resolves the ids of the tensors in sections; known is the number of them in the recipe.
octet_syn_status octet_syn_recipe_info(const octet_synapse *api, octet_syn_handle r, uint32_t tensors, const octet_syn_tensor *tensor,
			       uint64_t *workspace, octet_syn_launch_info **out, uint32_t *known);
void octet_syn_launch_info_free(octet_syn_launch_info *l);
octet_syn_status octet_syn_launch(const octet_synapse *api, octet_syn_handle r, octet_syn_launch_info *l, octet_syn_handle s,
			  const uint64_t *sections, uint64_t workspace);

// hccl.c

enum { OCTET_UNIQUE_ID = 1032 };

const char *octet_hccl_text(const octet_synapse *api, int code);
octet_syn_status octet_syn_unique_id(const octet_synapse *api, void *out);
octet_syn_status octet_syn_comm_new(const octet_synapse *api, const void *id, int ranks, int rank, octet_syn_handle *out);
octet_syn_status octet_syn_comm_free(const octet_synapse *api, octet_syn_handle c);
octet_syn_status octet_syn_all_reduce(const octet_synapse *api, octet_syn_handle c, octet_syn_handle s, uint64_t p, uint64_t count, int type, int op);
octet_syn_status octet_syn_reduce_scatter(const octet_synapse *api, octet_syn_handle c, octet_syn_handle s, uint64_t to, uint64_t from,
				  uint64_t count, int type, int op);
octet_syn_status octet_syn_all_gather(const octet_synapse *api, octet_syn_handle c, octet_syn_handle s, uint64_t to, uint64_t from,
			      uint64_t count, int type);
octet_syn_status octet_syn_all_to_all(const octet_synapse *api, octet_syn_handle c, octet_syn_handle s, uint64_t to, uint64_t from,
			      uint64_t count, int type);
octet_syn_status octet_syn_broadcast(const octet_synapse *api, octet_syn_handle c, octet_syn_handle s, uint64_t p, uint64_t count, int type, int root);

// hlml.c

typedef struct {
	uint64_t value;
	int known;
} octet_syn_answer;

typedef struct {
	octet_syn_answer utilization; // percent
	octet_syn_answer memory_used, memory_total; // bytes
	octet_syn_answer power; // milliwatts
	octet_syn_answer energy; // millijoules since the driver was loaded
	octet_syn_answer temperature; // °C
	octet_syn_answer clock; // MHz
	octet_syn_answer throttle; // bits of throttledByPower and throttledByHeat
} octet_syn_reading;

octet_syn_status octet_hlml_open(const octet_hlml *api, const char *bus, octet_syn_handle *out);
octet_syn_status octet_hlml_close(const octet_hlml *api);
octet_syn_status octet_hlml_read(const octet_hlml *api, octet_syn_handle device, octet_syn_reading *out);

#endif
