// Declarations that the files of HCCL share.
#ifndef STANDIN_LIBSYNAPSE_HCCL_H
#define STANDIN_LIBSYNAPSE_HCCL_H

#include "libsynapse.h"

#pragma GCC visibility push(hidden)

// hcclResult_t.
typedef enum {
	HCCL_SUCCESS = 0,
	HCCL_NO_DEVICE = 1,
	HCCL_UNSUPPORTED = 2,
	HCCL_SYSTEM = 5,
	HCCL_INVALID_ARGUMENT = 7,
	HCCL_INVALID_USAGE = 8,
	HCCL_SOCKET = 9,
	HCCL_SYNAPSE_TERMINATED = 15,
} result;

// hcclDataType_t and hcclRedOp_t.
enum { HCCL_I32 = 2, HCCL_U32 = 3, HCCL_F16 = 6, HCCL_F32 = 7, HCCL_BF16 = 9 };
enum { SUM = 0, MAX = 3, NONE = 5 };

enum { MAX_RANKS = 64 };

typedef struct {
	object object;
	int ranks, rank;
	int peers[MAX_RANKS]; // sockets
	uint64_t done;        // number of collectives, equal on all ranks
} comm; // a communicator

// enter_hccl and leave_hccl are enter and leave with HCCL's result codes.
result enter_hccl(void);
result leave_hccl(result r);
#define ENTER_HCCL()                              \
	do {                                      \
		const result refused = enter_hccl(); \
		if (refused)                      \
			return refused;           \
	} while (0)

// Every wait has a deadline, which restarts with every progress.
double now(void); // seconds
double deadline(void);

// An op is a call that is enqueued on a stream.
enum kind_of_op { ALL_REDUCE, REDUCE_SCATTER, ALL_GATHER, ALL_TO_ALL, BROADCAST };

typedef struct {
	comm *comm;
	enum kind_of_op kind;
	uint64_t from, to; // addresses
	uint64_t count;    // elements, as the call counts them
	uint32_t type, reduction, root;
} op;

uint32_t element_type(uint32_t type);           // synDataType of an hcclDataType_t; 0: unsupported
uint64_t bytes_from(const op *o);               // sizes of an op's buffers
uint64_t bytes_to(const op *o);
void *buffer(uint64_t address, uint64_t bytes); // NULL: 0 bytes, or not in one allocation

status run_op(void *op);

// A message is a head, which both ranks compare, and data.
typedef struct {
	uint32_t kind, type, reduction, root;
	uint64_t done, bytes;
} head; // without padding: heads are compared byte by byte

typedef struct {
	int peer;
	bool sends;
	head head;
	unsigned char *data;
	uint64_t at; // transferred bytes of head and data
} message;

// exchange sends and receives all messages. It returns false after an error.
bool exchange(comm *c, message *messages, uint32_t n);

#pragma GCC visibility pop

#endif
