//go:build ignore

// Stand-in for libnccl.so.2: collectives between the streams of the stand-in for the
// driver, which OCTET_LIBCUDA must name, of one process or of several on a machine. A
// collective blocks its stream until all ranks have reached it, as in NCCL. See standin.go.

#define _GNU_SOURCE
#include "standin.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum {
	SUCCESS = 0,
	UNHANDLED_CUDA_ERROR = 1,
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

typedef struct comm comm;

enum kind { ALL_REDUCE, REDUCE_SCATTER, ALL_GATHER, ALL_TO_ALL };
static const char *const names[] = {"all-reduce", "reduce-scatter", "all-gather", "all-to-all"};

typedef struct {
	comm *by;
	enum kind kind;
	const char *send;
	char *recv;
	size_t count; // elements per rank, of recv in REDUCE_SCATTER, of a part in ALL_TO_ALL
	int type, reduce;
	int captured;
} call;

enum { RANKS = 16, SLOT = 64 << 20 };

// shared is the memory of all ranks, goroutines or processes: a file that all of them map. In a
// collective each rank copies its data to its slot, and computes its own result from all slots.
typedef struct {
	_Atomic int joined, broken;
	_Atomic int ordinals[RANKS]; // of the GPUs, from 1
	_Atomic int processes[RANKS]; // their process IDs
	_Atomic int pending[RANKS];  // calls on streams, not completed
	_Atomic uint64_t arrived[RANKS], finished[RANKS]; // collectives
	call now[RANKS]; // by and the pointers are those of the rank's process
	char slots[][SLOT]; // sparse
} shared;

typedef struct { char internal[128]; } ncclUniqueId;

enum { ABORTED = 1, DESTROYED };

// A comm is never freed: operations on streams may refer to it.
struct comm {
	shared *all;
	int rank, ranks, ordinal;
	int ended;      // 0, ABORTED or DESTROYED
	uint64_t calls; // that this rank has begun
	int waits;      // the last one is in the slot
	int apart;      // ranks are in several processes
	int polled;     // it counts in waiting
};

static _Atomic int waiting; // communicators of this process that wait for ranks in others

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
	*id = (ncclUniqueId){"/dev/shm/standin-nccl-XXXXXX"};
	const int fd = mkstemp(id->internal);
	return fd < 0 || close(fd) ? UNHANDLED_CUDA_ERROR : SUCCESS;
}

// poll_ranks wakes the streams that wait for ranks in other processes. Those of this process
// notify one another.
static void *poll_ranks(void *unused) {
	for (;; usleep(100))
		if (atomic_load(&waiting))
			driver.notify();
	return unused;
}

static int start_polling(void) {
	static _Atomic int polling;
	pthread_t thread;
	return !atomic_exchange(&polling, 1) && pthread_create(&thread, NULL, poll_ranks, NULL);
}

static void end_wait(comm *c) {
	if (__atomic_exchange_n(&c->polled, 0, __ATOMIC_SEQ_CST))
		atomic_fetch_sub(&waiting, 1);
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

int ncclCommInitRank(comm **out, int ranks, ncclUniqueId id, int rank) {
	if (rank < 0 || rank >= ranks || ranks > RANKS)
		return INVALID_ARGUMENT;
	if (load_driver())
		return UNHANDLED_CUDA_ERROR;
	const size_t bytes = sizeof(shared) + (size_t)ranks * SLOT;
	const int fd = open(id.internal, O_RDWR);
	if (fd < 0 || ftruncate(fd, bytes)) // new bytes are 0; the same size changes nothing
		return INVALID_ARGUMENT;
	shared *all = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	close(fd);
	if (all == MAP_FAILED)
		return UNHANDLED_CUDA_ERROR;
	comm *c = calloc(1, sizeof *c);
	*c = (comm){.all = all, .rank = rank, .ranks = ranks, .ordinal = driver.ordinal()};
	if (atomic_exchange(&all->ordinals[rank], 1 + c->ordinal))
		return INVALID_ARGUMENT;
	atomic_store(&all->processes[rank], getpid());
	// A communicator must not have a GPU twice (NCCL user guide, Creating a Communicator).
	for (int r = 0; r < ranks; r++)
		if (r != rank && atomic_load(&all->ordinals[r]) == 1 + c->ordinal)
			atomic_store(&all->broken, 1);
	if (atomic_fetch_add(&all->joined, 1) + 1 == ranks)
		unlink(id.internal);
	while (atomic_load(&all->joined) < ranks && !atomic_load(&all->broken))
		usleep(100);
	for (int r = 0; r < ranks; r++)
		c->apart |= atomic_load(&all->processes[r]) != getpid();
	if (c->apart && start_polling())
		return UNHANDLED_CUDA_ERROR;
	*out = c;
	return atomic_load(&all->broken) ? INVALID_USAGE : SUCCESS;
}

// After an abort, pending calls no longer wait, and write NaN instead of results.
int ncclCommAbort(comm *c) {
	if (__atomic_exchange_n(&c->ended, ABORTED, __ATOMIC_SEQ_CST))
		return INVALID_ARGUMENT; // NCCL has freed it
	end_wait(c); // a lost device runs no more calls
	driver.notify();
	return SUCCESS;
}

// With pending calls of any rank, NCCL waits, sometimes forever; the stand-in fails.
int ncclCommDestroy(comm *c) {
	for (int r = 0; r < c->ranks; r++)
		if (atomic_load(&c->all->pending[r]))
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
static void reduce(const comm *me, const call *c, size_t i, int begin, char *out, size_t at) {
	float sum = 0;
	int32_t max = INT32_MIN;
	for (int r = 0; r < me->ranks; r++) {
		const char *p = me->all->slots[(begin + r) % me->ranks] + 4 * i;
		float x;
		int32_t n;
		memcpy(&x, p, 4);
		memcpy(&n, p, 4);
		sum = r ? sum + x : x;
		max = n > max ? n : max;
	}
	memcpy(out + 4 * at, c->type == F32 ? (void *)&sum : (void *)&max, 4);
}

// perform computes this rank's result.
static void perform(const comm *me, const call *c) {
	const size_t size = sizes[c->type], n = c->count;
	switch (c->kind) {
	case ALL_REDUCE:
		for (size_t i = 0; i < n; i++)
			reduce(me, c, i, 1 + i * me->ranks / n, c->recv, i);
		break;
	case REDUCE_SCATTER:
		for (size_t i = 0; i < n; i++)
			reduce(me, c, me->rank * n + i, me->rank + 1, c->recv, i);
		break;
	default:
		for (int from = 0; from < me->ranks; from++)
			memcpy(c->recv + from * n * size, me->all->slots[from] + (c->kind == ALL_TO_ALL ? me->rank * n * size : 0), n * size);
	}
}

// same returns whether two ranks' calls agree. All or none must be captured (NCCL user
// guide, Using NCCL with CUDA Graphs).
static int same(const call *a, const call *b) {
	return a->kind == b->kind && a->count == b->count && a->type == b->type && a->reduce == b->reduce && a->captured == b->captured;
}

// report_mismatch fails the communicator: NCCL would wait forever or return mixed data.
static void report_mismatch(comm *me) {
	if (atomic_exchange(&me->all->broken, 1))
		return;
	for (int r = 0; r < me->ranks; r++) {
		const call *c = &me->all->now[r];
		fprintf(stderr, "stand-in: the ranks' calls differ: rank %d runs %s of %zu elements of type %d%s\n", r, names[c->kind], c->count,
			c->type, c->captured ? ", captured" : "");
	}
}

// reached returns whether all ranks have counted n collectives.
static int reached(const comm *me, _Atomic uint64_t *counts, uint64_t n) {
	for (int r = 0; r < me->ranks; r++)
		if (atomic_load(&counts[r]) < n)
			return 0;
	return 1;
}

// advance returns whether the collective is complete.
static int advance(comm *me, const call *c) {
	shared *all = me->all;
	if (!me->waits) {
		if (!reached(me, all->finished, me->calls)) // a rank still reads this rank's slot
			return 0;
		const size_t sent = c->count * sizes[c->type] * (c->kind == REDUCE_SCATTER || c->kind == ALL_TO_ALL ? me->ranks : 1);
		memcpy(all->slots[me->rank], c->send, sent);
		all->now[me->rank] = *c;
		me->waits = 1;
		atomic_store(&all->arrived[me->rank], ++me->calls);
	}
	if (!reached(me, all->arrived, me->calls))
		return 0;
	for (int r = 1; r < me->ranks; r++)
		if (!same(&all->now[0], &all->now[r]))
			report_mismatch(me);
	if (!atomic_load(&all->broken))
		perform(me, c);
	me->waits = 0;
	atomic_store(&all->finished[me->rank], me->calls);
	driver.notify();
	return 1;
}

// record appends a line to the file that STANDIN_NCCL_LOG names: the rank, the collective, and
// the bytes of the tensor that is reduced, scattered, gathered or exchanged.
static void record(const call *c) {
	const char *path = getenv("STANDIN_NCCL_LOG");
	FILE *f = path ? fopen(path, "a") : NULL;
	if (!f)
		return;
	fprintf(f, "%d %s %zu\n", c->by->rank, names[c->kind], c->count * sizes[c->type] * (c->kind == ALL_REDUCE ? 1 : c->by->ranks));
	fclose(f);
}

// run_call is the operation on a stream.
static int run_call(void *data) {
	const call *c = data;
	comm *me = c->by;
	const int done = !me->ended && advance(me, c);
	if (!done && !me->ended) {
		if (me->apart && !__atomic_exchange_n(&me->polled, 1, __ATOMIC_SEQ_CST))
			atomic_fetch_add(&waiting, 1);
		return STANDIN_LATER;
	}
	end_wait(me);
	if (done)
		record(c);
	else // aborted: recv is incomplete
		memset(c->recv, 0xff, c->count * sizes[c->type]);
	if (!c->captured)
		atomic_fetch_sub(&me->all->pending[me->rank], 1);
	return atomic_load(&me->all->broken) ? LAUNCH_FAILED : SUCCESS;
}

// issue checks what NCCL checks, and that the thread's context is on the communicator's
// GPU, which NCCL would set itself.
static int issue(call c, size_t sent, size_t received, void *stream) {
	if (c.by->ended) {
		fprintf(stderr, "stand-in: use of an aborted or destroyed communicator\n");
		return INVALID_ARGUMENT;
	}
	if (driver.ordinal() != c.by->ordinal)
		return INVALID_USAGE;
	if (c.type < 0 || c.type >= TYPES || !sizes[c.type])
		return INVALID_ARGUMENT;
	if ((sent && !driver.device(c.send, sent * sizes[c.type])) || (received && !driver.device(c.recv, received * sizes[c.type])))
		return INVALID_ARGUMENT;
	if (sent * sizes[c.type] > SLOT)
		return INVALID_ARGUMENT;
	c.captured = driver.capturing(stream);
	if (!c.captured)
		atomic_fetch_add(&c.by->all->pending[c.by->rank], 1);
	return driver.enqueue(stream, run_call, &c, sizeof c) ? UNHANDLED_CUDA_ERROR : SUCCESS;
}

// reducible returns whether octet uses a reduction. NCCL has more: FP8 from compute
// capability 9.0, rounded at every hop.
static int reducible(int type, int op) { return (type == F32 && op == SUM) || (type == INT32 && op == MAX); }

int ncclAllReduce(const void *send, void *recv, size_t n, int type, int op, comm *c, void *stream) {
	if (!reducible(type, op))
		return INVALID_ARGUMENT;
	return issue((call){c, ALL_REDUCE, send, recv, n, type, op}, n, n, stream);
}

int ncclReduceScatter(const void *send, void *recv, size_t n, int type, int op, comm *c, void *stream) {
	if (!reducible(type, op))
		return INVALID_ARGUMENT;
	return issue((call){c, REDUCE_SCATTER, send, recv, n, type, op}, n * c->ranks, n, stream);
}

int ncclAllGather(const void *send, void *recv, size_t n, int type, comm *c, void *stream) {
	return issue((call){c, ALL_GATHER, send, recv, n, type}, n, n * c->ranks, stream);
}

// The sends and receives of a thread's group, in pairs. Octet's groups are all-to-alls: rank by
// rank, equal parts that follow one another.
static __thread struct {
	int open, pairs, sent;
	call first;
	void *stream;
} group;

int ncclGroupStart(void) {
	if (group.open)
		return INVALID_USAGE;
	memset(&group, 0, sizeof group);
	group.open = 1;
	return SUCCESS;
}

int ncclSend(const void *send, size_t n, int type, int peer, comm *c, void *stream) {
	if (!group.open || group.sent || peer != group.pairs || type < 0 || type >= TYPES)
		return INVALID_USAGE;
	if (peer == 0) {
		group.first = (call){c, ALL_TO_ALL, send, NULL, n, type};
		group.stream = stream;
	}
	const call *f = &group.first;
	if (c != f->by || n != f->count || type != f->type || stream != group.stream || (const char *)send != f->send + peer * n * sizes[type])
		return INVALID_ARGUMENT;
	group.sent = 1;
	return SUCCESS;
}

int ncclRecv(void *recv, size_t n, int type, int peer, comm *c, void *stream) {
	if (!group.open || !group.sent || peer != group.pairs)
		return INVALID_USAGE;
	call *f = &group.first;
	if (peer == 0)
		f->recv = recv;
	if (c != f->by || n != f->count || type != f->type || stream != group.stream || (char *)recv != f->recv + peer * n * sizes[type])
		return INVALID_ARGUMENT;
	group.sent = 0, group.pairs++;
	return SUCCESS;
}

int ncclGroupEnd(void) {
	if (!group.open)
		return INVALID_USAGE;
	group.open = 0;
	if (!group.pairs)
		return SUCCESS;
	const int ranks = group.first.by->ranks;
	if (group.pairs != ranks || group.sent)
		return INVALID_USAGE;
	return issue(group.first, group.first.count * ranks, group.first.count * ranks, group.stream);
}
