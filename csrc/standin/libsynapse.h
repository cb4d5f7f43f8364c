// Declarations that the files of the stand-in for SynapseAI share.
#ifndef STANDIN_LIBSYNAPSE_H
#define STANDIN_LIBSYNAPSE_H

#include "setting.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#pragma GCC visibility push(hidden) // not exported by the library

// synStatus, the values that the stand-in returns (synapse_common_types.h).
typedef enum {
	SUCCESS = 0,
	INVALID_ARGUMENT = 1,
	OUT_OF_HOST_MEMORY = 3,
	OUT_OF_DEVICE_MEMORY = 4,
	OBJECT_ALREADY_INITIALIZED = 5,
	NO_DEVICE_FOUND = 8,
	DEVICE_TYPE_MISMATCH = 9,
	UNSUPPORTED = 18,
	DEVICE_ALREADY_ACQUIRED = 20,
	NAME_IS_ALREADY_USED = 21,
	BUSY = 22,
	FAIL = 26,
	UNINITIALIZED = 28,
	ALREADY_INITIALIZED = 29,
	FAILED_SECTION_VALIDATION = 30,
	SYNAPSE_TERMINATED = 31,
	INVALID_EVENT_HANDLE = 33,
	MAPPING_NOT_FOUND = 34,
	INVALID_TENSOR_PROPERTIES = 39,
	FAIL_HCCL = 40,
	FAILED_TO_COLLECT_TIME = 41,
} status;

// synDeviceType.
enum { GAUDI2 = 4, GAUDI3 = 5 };

// synDataType.
enum {
	I8 = 1,
	BF16 = 2,
	F32 = 4,
	I32 = 16,
	F16 = 256,
	U32 = 1024,
	E4M3 = 8192,
	E5M2 = 16384,
};

// synTensorType.
enum { DATA_TENSOR = 0 };

enum {
	MAX_SIZES = 25,    // HABANA_DIM_MAX, the length of arrays in structures
	MAX_DIMS = 5,      // SYN_MAX_TENSOR_DIM, the engines' maximum
	MAX_NAME = 1024,   // ENQUEUE_TENSOR_NAME_MAX_SIZE
	MAX_OPERANDS = 64, // inputs of a node, and outputs
	MAX_PARAMS = 1024, // bytes of a kernel's parameters
};

// complain writes a reason to stderr. SynapseAI writes such reasons to its log files.
void complain(const char *format, ...) __attribute__((format(printf, 1, 2)));

// A table has every live object, to check handles and find leaks.
enum kind { MEMORY, HOST_MEMORY, STREAM, EVENT, GRAPH, SECTION, TENSOR, RECIPE, COMM };

typedef struct object {
	struct object *next;
	enum kind kind;
} object;

void *object_new(enum kind kind, size_t bytes); // zeroed
void *object_find(const void *handle, enum kind kind); // or NULL
void object_free(void *o);
void object_each(enum kind kind, void (*visit)(void *object, void *data), void *data);

// enter locks the library. It fails, without the lock, if the library is not initialized or
// the device is lost. After SUCCESS the call must end with leave.
status enter(void);
status leave(status s);
#define ENTER()                      \
	do {                         \
		const status refused = enter(); \
		if (refused)         \
			return refused; \
	} while (0)

// The device. After lose, every further call fails.
bool is_device(uint32_t id); // whether id is the acquired device
bool is_gaudi3(uint32_t device_type);
uint64_t alignment(uint32_t device_type); // of addresses
uint32_t device_type(void); // of the acquired device; 0: none
status lose(status s);
status lost(void);

// Memory. Device addresses are invalid on the host, so that confusing them crashes.
void *device_memory(uint64_t address, uint64_t bytes); // NULL: not in one allocation
bool host_memory(const void *p, uint64_t bytes);       // whether all of it is mapped for the device

// Streams. Work runs when a call waits for it; an error loses the device. enqueue copies
// the data.
typedef status (*work)(void *data);
status enqueue(void *stream, work run, const void *data, size_t bytes); // INVALID_ARGUMENT: no such stream
void finish_all(void); // runs all pending work

// An operand is a tensor of a kernel.
typedef struct {
	uint32_t type; // synDataType
	uint32_t dims;
	uint64_t sizes[MAX_DIMS]; // fastest-changing first; 1 from dims on
	int32_t section;          // number of a persistent section, or
	uint64_t offset;          // of the section, the workspace or the constants
	void *data;               // set while a recipe runs
} operand;

enum { WORKSPACE = -1, CONSTANTS = -2 };

uint64_t elements(const operand *o);
uint64_t type_size(uint32_t type); // 0: unknown type
uint64_t bytes_of(const operand *o);
bool same_sizes(const operand *a, const operand *b);

// RANDOM_LANES is the number of parallel generators of stochastic rounding.
#define RANDOM_LANES 128

// A call has the arguments of a kernel. Omitted operands are NULL.
typedef struct call {
	const struct kernel *kernel;
	uint32_t type; // the last suffix of the guid
	uint32_t from; // the first suffix of a cast
	bool gaudi3;
	bool drop_nan;  // maxima and minima ignore NaN, see standin.go
	bool backwards; // a GEMM is summed with k descending
	uint32_t ins, outs;
	const operand *in[MAX_OPERANDS];
	operand *out[MAX_OPERANDS];
	const void *params;
	uint32_t params_size;
	uint32_t *random; // the device's RANDOM_LANES registers
} call;

// A kernel is one line of a table.
//
// in and out have a letter for the type of each operand: T the suffix's, R the first
// suffix of a cast, F F32, I I32, 8 one of the FP8 formats, h E4M3, e E5M2, G T or F32, B
// an I8 mask, A any (the same for all A), N any. Operands after ? are optional: NULL, or
// missing at the end. * repeats the operand before it.
typedef struct kernel {
	const char *guid;  // without suffixes
	uint32_t types;    // valid suffixes; 0: the guid has none
	const char *in, *out;
	uint16_t params[4]; // sizes of the parameter structure's versions; {0}: no parameters
	const char *(*check)(const call *c); // returns a reason, or NULL; called after the signature's check
	void (*run)(const call *c);
	const void *detail; // for run
	bool in_place; // an output may have the address of an input of the same size
} kernel;

enum { OPTIONAL_PARAMS = 0xffff, ANY_PARAMS = 0xfffe }; // in kernel.params

extern const kernel elementwise_kernels[], gemm_kernels[], cast_kernels[], layer_kernels[], attention_kernels[], data_kernels[];

// kernel_find finds the kernel of a guid and parses its suffixes; NULL: unknown.
const kernel *kernel_find(const char *guid, uint32_t *type, uint32_t *from);
const char *kernel_check(const call *c); // checks the signature, then calls the kernel's check

// Threads. parallel runs a task on ranges that make up [0, n), each of at least min_range,
// on all processors (or STANDIN_THREADS). A task splits its outputs and no sum, so results
// do not depend on the number of threads.
typedef void (*task)(void *data, uint64_t from, uint64_t to);
void parallel(uint64_t n, uint64_t min_range, task run, void *data);

enum { SMALL = 1 << 15 }; // operations that take less time than waking a thread

// WIDE functions are also compiled for wider vectors, with the same bits: the compiler
// contracts and reorders nothing.
#ifdef __x86_64__
#define WIDE __attribute__((target_clones("avx2", "default")))
#else
#define WIDE
#endif

// Values. load and store convert n elements from `at`. store rounds to nearest even; a
// float overflow becomes infinity, or NaN in a format without infinity.
void load(float *to, const operand *o, uint64_t at, uint64_t n, bool gaudi3);
void store(const operand *o, uint64_t at, const float *from, uint64_t n, bool gaudi3);
float element(const operand *o, uint64_t at, bool gaudi3);
double fp8_value(uint32_t type, uint8_t code, bool gaudi3);

// always_inline, because functions with different options are not inlined otherwise.
__attribute__((always_inline)) static inline uint32_t bits_of(float x) {
	uint32_t bits;
	memcpy(&bits, &x, sizeof bits);
	return bits;
}

__attribute__((always_inline)) static inline float float_of(uint32_t bits) {
	float x;
	memcpy(&x, &bits, sizeof x);
	return x;
}

enum { TO_NEAREST = 0, STOCHASTIC = 3 }; // CastF32RoundMode_t
// encode stores floats in a narrower float format. lanes are for STOCHASTIC.
void encode(const operand *o, uint64_t at, const float *from, uint64_t n, bool gaudi3, int round, bool saturate, uint32_t *lanes);

// A matmul is one GEMM of a batch: a is read as [m][k] and b as [k][n].
typedef struct {
	const operand *a, *b;
	uint64_t at_a, at_b; // of the first element
	uint64_t m, n, k;
	uint64_t a_row, a_column, b_row, b_column; // strides
	bool gaudi3, backwards;
	float *out; // [m][n]
} matmul;

void multiply_fp8(const matmul *p);
void add_matmul(float *c, const float *a, const float *b, uint64_t m, uint64_t n, uint64_t k); // c += a·b in F32, k ascending

// A recipe is a compiled graph: nodes as steps, in an order that the edges allow.
typedef struct {
	const kernel *kernel;
	char *guid, *name;
	uint32_t type, from;
	uint32_t deterministic;
	uint32_t ins, outs;
	int32_t in[MAX_OPERANDS], out[MAX_OPERANDS]; // indices of operands; -1: omitted
	void *params;
	uint32_t params_size;
} step;

typedef struct {
	object object;
	uint32_t device_type;
	char *name;
	uint32_t operands, steps, sections;
	operand *operand;
	char **operand_name;
	step *step;
	uint64_t workspace, constants;
	void *constant;
} recipe;

call call_of(recipe *r, const step *s);

#pragma GCC visibility pop

#endif
