//go:build ignore

// Stand-in for libnccl.so.2: collectives between the streams of the stand-in for the
// driver, which OCTET_LIBCUDA must name, in one process or in several. A collective blocks
// its stream until all ranks have reached it, as in NCCL. See standin.go.
//
// The ranks of a communicator map a file, whose path is the unique id. Each copies its data
// there, and computes its own result when all have.

#define _GNU_SOURCE
#include "standin.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum {
	SUCCESS = 0,
	UNHANDLED_CUDA_ERROR = 1,
	SYSTEM_ERROR = 2,
	INVALID_ARGUMENT = 4,
	INVALID_USAGE = 5,
	LAUNCH_FAILED = 719, // CUresult
};

// ncclDataType_t and ncclRedOp_t.
enum { UINT8 = 1, INT32 = 2, F32 = 7, TYPES };
enum { SUM = 0, MAX = 2 };

static const size_t sizes[TYPES] = {[UINT8] = 1, [INT32] = 4, [F32] = 4};

// NCCL's log begins with this text, which names the CUDA version of the build.
__attribute__((used)) static const char version[] = "NCCL version 2.30.7+cuda13.0";

static struct {
	int (*enqueue)(void *stream, op_run run, const void *data, size_t bytes);
	int (*device)(const void *p, size_t bytes);
	int (*ordinal)(void);
	int (*capturing)(void *stream);
	void (*notify)(void);
} driver;

enum { RANKS = 32, ROOM = 1 << 28 }; // maximum of ranks, and of the bytes that a rank sends

enum kind { ALL_REDUCE, REDUCE_SCATTER, ALL_GATHER };

static const char *const names[] = {"all-reduce", "reduce-scatter", "all-gather"};

// head is what the ranks' calls have in common.
typedef struct {
	enum kind kind;
	int type, reduce, captured;
	size_t count; // elements per rank, of the result in REDUCE_SCATTER
} head;

// slot is a rank's part of the file. All fields but now are read and written atomically.
typedef struct {
	int joined, ordinal;
	int pending;           // calls on streams, not completed
	uint64_t posted, read; // collectives whose data this rank has stored, and has read of all ranks
	head now;              // of the last one posted
} slot;

typedef struct {
	int joined, broken;
	slot slots[RANKS];
} shared;

enum { ABORTED = 1, DESTROYED };

// A comm is never freed: operations on streams may refer to it.
typedef struct {
	shared *all;
	char *data; // ROOM bytes of each rank
	int ranks, rank, ordinal;
	int ended;      // 0, ABORTED or DESTROYED
	uint64_t calls; // collectives that this rank has posted
	int waits;      // in the last one
} comm;

typedef struct {
	comm *by;
	head head;
	const char *send;
	char *recv;
	size_t bytes; // of send
} call;

typedef struct { char internal[128]; } ncclUniqueId;

#define LOAD(x) __atomic_load_n(&(x), __ATOMIC_SEQ_CST)
#define STORE(x, value) __atomic_store_n(&(x), value, __ATOMIC_SEQ_CST)

int ncclGetVersion(int *version) {
	*version = setting("STANDIN_NCCL", 23007);
	return SUCCESS;
}

const char *ncclGetErrorString(int status) {
	switch (status) {
	case UNHANDLED_CUDA_ERROR: return "unhandled cuda error (run with NCCL_DEBUG=INFO for details)";
	case INVALID_ARGUMENT: return "invalid argument (run with NCCL_DEBUG=WARN for details)";
	case INVALID_USAGE: return "invalid usage (run with NCCL_DEBUG=WARN for details)";
	case 6: return "remote process exited or there was a network error";
	}
	return "stand-in error";
}

int ncclGetUniqueId(ncclUniqueId *id) {
	const char *folder = getenv("TMPDIR");
	memset(id, 0, sizeof *id);
	if (snprintf(id->internal, sizeof *id, "%s/nccl-XXXXXX", folder ? folder : "/tmp") >= (int)sizeof *id)
		return SYSTEM_ERROR;
	const int fd = mkstemp(id->internal);
	if (fd < 0)
		return SYSTEM_ERROR;
	close(fd);
	return SUCCESS;
}

static int load_driver(void) {
	void *library = dlopen(getenv("OCTET_LIBCUDA") ? getenv("OCTET_LIBCUDA") : "libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
	if (!library)
		return UNHANDLED_CUDA_ERROR;
	*(void **)&driver.enqueue = dlsym(library, "standin_enqueue");
	*(void **)&driver.device = dlsym(library, "standin_device");
	*(void **)&driver.ordinal = dlsym(library, "standin_ordinal");
	*(void **)&driver.capturing = dlsym(library, "standin_capturing");
	*(void **)&driver.notify = dlsym(library, "standin_notify");
	return driver.enqueue ? SUCCESS : UNHANDLED_CUDA_ERROR;
}

// map maps the file of a communicator. Its bytes that no rank writes take no space.
static int map(comm *c, const char *path) {
	const size_t page = sysconf(_SC_PAGESIZE), head = (sizeof(shared) + page - 1) / page * page, all = head + (size_t)c->ranks * ROOM;
	const int fd = open(path, O_RDWR | O_CLOEXEC);
	if (fd < 0)
		return SYSTEM_ERROR;
	void *p = ftruncate(fd, all) ? MAP_FAILED : mmap(NULL, all, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
	close(fd);
	if (p == MAP_FAILED)
		return SYSTEM_ERROR;
	c->all = p;
	c->data = (char *)p + head;
	return SUCCESS;
}

// ncclCommInitRank returns when all ranks have called it. The last one unlinks the file.
int ncclCommInitRank(comm **out, int ranks, ncclUniqueId id, int rank) {
	int status = load_driver();
	if (status)
		return status;
	if (rank < 0 || rank >= ranks || ranks > RANKS || !id.internal[0])
		return INVALID_ARGUMENT;
	comm *c = calloc(1, sizeof *c);
	*c = (comm){.ranks = ranks, .rank = rank, .ordinal = driver.ordinal()};
	if ((status = map(c, id.internal)))
		return status;
	slot *slots = c->all->slots;
	if (__atomic_exchange_n(&slots[rank].joined, 1, __ATOMIC_SEQ_CST))
		return INVALID_ARGUMENT;
	slots[rank].ordinal = c->ordinal;
	if (__atomic_add_fetch(&c->all->joined, 1, __ATOMIC_SEQ_CST) == ranks)
		unlink(id.internal);
	while (LOAD(c->all->joined) < ranks)
		nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL);
	// A communicator must not have a GPU twice (NCCL user guide, Creating a Communicator).
	for (int r = 0; r < ranks; r++)
		if (r != rank && slots[r].ordinal == c->ordinal)
			return INVALID_USAGE;
	*out = c;
	return SUCCESS;
}

// After an abort, pending calls no longer wait, and write NaN instead of results.
int ncclCommAbort(comm *c) {
	if (__atomic_exchange_n(&c->ended, ABORTED, __ATOMIC_SEQ_CST))
		return INVALID_ARGUMENT; // NCCL has freed it
	driver.notify();
	return SUCCESS;
}

// With pending calls of any rank, NCCL waits, sometimes forever; the stand-in fails.
int ncclCommDestroy(comm *c) {
	for (int r = 0; r < c->ranks; r++)
		if (LOAD(c->all->slots[r].pending))
			return INVALID_USAGE;
	return __atomic_exchange_n(&c->ended, DESTROYED, __ATOMIC_SEQ_CST) ? INVALID_ARGUMENT : SUCCESS;
}

int ncclCommGetAsyncError(comm *c, int *status) {
	if (c->ended)
		return c->ended == ABORTED ? INVALID_ARGUMENT : INVALID_USAGE; // different codes, for tests
	*status = setting("STANDIN_NCCL_ERROR", 0);
	return SUCCESS;
}

// reduce combines element i of all ranks into element at of out. A sum starts at rank begin
// and goes around the ring, so that tests find callers that rely on another order.
static void reduce(const comm *c, int type, size_t i, int begin, char *out, size_t at) {
	float sum = 0;
	int32_t max = INT32_MIN;
	for (int r = 0; r < c->ranks; r++) {
		const char *p = c->data + (size_t)((begin + r) % c->ranks) * ROOM + 4 * i;
		float x;
		int32_t n;
		memcpy(&x, p, 4);
		memcpy(&n, p, 4);
		sum = r ? sum + x : x;
		max = n > max ? n : max;
	}
	memcpy(out + 4 * at, type == F32 ? (void *)&sum : (void *)&max, 4);
}

// perform computes this rank's result.
static void perform(const call *c) {
	const comm *me = c->by;
	const size_t n = c->head.count, bytes = n * sizes[c->head.type];
	switch (c->head.kind) {
	case ALL_REDUCE:
		for (size_t i = 0; i < n; i++)
			reduce(me, c->head.type, i, 1 + i * me->ranks / n, c->recv, i);
		break;
	case REDUCE_SCATTER:
		for (size_t i = 0; i < n; i++)
			reduce(me, c->head.type, me->rank * n + i, me->rank + 1, c->recv, i);
		break;
	default:
		for (int r = 0; r < me->ranks; r++)
			memcpy(c->recv + r * bytes, me->data + (size_t)r * ROOM, bytes);
	}
}

// same returns whether two ranks' calls agree. All or none must be captured (NCCL user
// guide, Using NCCL with CUDA Graphs).
static int same(const head *a, const head *b) {
	return a->kind == b->kind && a->count == b->count && a->type == b->type && a->reduce == b->reduce && a->captured == b->captured;
}

// agree returns whether all ranks' calls agree. If not, it fails the communicator: NCCL would
// wait forever or return mixed data.
static int agree(const comm *c) {
	const slot *slots = c->all->slots;
	int first = 0;
	for (int r = 1; r < c->ranks; r++)
		if (!same(&slots[0].now, &slots[r].now))
			first = !__atomic_exchange_n(&c->all->broken, 1, __ATOMIC_SEQ_CST) || first;
	for (int r = 0; first && r < c->ranks; r++) {
		const head *h = &slots[r].now;
		fprintf(stderr, "stand-in: the ranks' calls differ: rank %d runs %s of %zu elements of type %d%s\n", r, names[h->kind], h->count,
			h->type, h->captured ? ", captured" : "");
	}
	return !LOAD(c->all->broken);
}

// record appends a line to the file that STANDIN_NCCL_LOG names: rank, collective, and bytes of
// the tensor that is reduced, scattered or gathered.
static void record(const call *c) {
	const char *path = getenv("STANDIN_NCCL_LOG");
	FILE *f = path ? fopen(path, "a") : NULL;
	if (!f)
		return;
	fprintf(f, "%d %s %zu\n", c->by->rank, names[c->head.kind], c->bytes * (c->head.kind == ALL_GATHER ? c->by->ranks : 1));
	fclose(f);
}

// all_past returns whether a counter of every rank has reached n.
#define all_past(c, counter, n) \
	({ \
		int past = 1; \
		for (int r = 0; r < (c)->ranks; r++) \
			past &= LOAD((c)->all->slots[r].counter) >= (n); \
		past; \
	})

// run_call is the operation on a stream.
static int run_call(void *data) {
	const call *c = data;
	comm *me = c->by;
	slot *mine = &me->all->slots[me->rank];
	int status = SUCCESS;
	if (!me->ended) {
		if (!me->waits) {
			if (!all_past(me, read, me->calls)) // another rank still needs the data before
				return STANDIN_LATER;
			memcpy(me->data + (size_t)me->rank * ROOM, c->send, c->bytes);
			mine->now = c->head;
			me->waits = 1;
			STORE(mine->posted, ++me->calls);
			driver.notify();
		}
		if (!all_past(me, posted, me->calls))
			return STANDIN_LATER;
		if (agree(me))
			perform(c);
		else
			status = LAUNCH_FAILED;
		STORE(mine->read, me->calls);
		driver.notify();
		record(c);
	} else { // aborted: recv is incomplete
		memset(c->recv, 0xff, c->head.count * sizes[c->head.type]);
	}
	me->waits = 0;
	if (!c->head.captured)
		__atomic_fetch_sub(&mine->pending, 1, __ATOMIC_SEQ_CST);
	return status;
}

// issue checks what NCCL checks, and that the thread's context is on the communicator's
// GPU, which NCCL would set itself.
static int issue(comm *by, head h, const void *send, void *recv, size_t sent, size_t received, void *stream) {
	if (by->ended) {
		fprintf(stderr, "stand-in: use of an aborted or destroyed communicator\n");
		return INVALID_ARGUMENT;
	}
	if (driver.ordinal() != by->ordinal)
		return INVALID_USAGE;
	if (h.type < 0 || h.type >= TYPES || !sizes[h.type] || sent * sizes[h.type] > ROOM)
		return INVALID_ARGUMENT;
	h.captured = driver.capturing(stream);
	const call c = {by, h, send, recv, sent * sizes[h.type]};
	if ((sent && !driver.device(send, c.bytes)) || (received && !driver.device(recv, received * sizes[h.type])))
		return INVALID_ARGUMENT;
	if (!h.captured)
		__atomic_fetch_add(&by->all->slots[by->rank].pending, 1, __ATOMIC_SEQ_CST);
	return driver.enqueue(stream, run_call, &c, sizeof c) ? UNHANDLED_CUDA_ERROR : SUCCESS;
}

// reducible returns whether octet uses a reduction. NCCL has more: FP8 from compute
// capability 9.0, rounded at every hop.
static int reducible(int type, int op) { return (type == F32 && op == SUM) || (type == INT32 && op == MAX); }

int ncclAllReduce(const void *send, void *recv, size_t n, int type, int op, comm *c, void *stream) {
	if (!reducible(type, op))
		return INVALID_ARGUMENT;
	return issue(c, (head){ALL_REDUCE, type, op, 0, n}, send, recv, n, n, stream);
}

int ncclReduceScatter(const void *send, void *recv, size_t n, int type, int op, comm *c, void *stream) {
	if (!reducible(type, op))
		return INVALID_ARGUMENT;
	return issue(c, (head){REDUCE_SCATTER, type, op, 0, n}, send, recv, n * c->ranks, n, stream);
}

int ncclAllGather(const void *send, void *recv, size_t n, int type, comm *c, void *stream) {
	return issue(c, (head){ALL_GATHER, type, 0, 0, n}, send, recv, n, n * c->ranks, stream);
}
