//go:build ignore

// Stand-in for libnccl.so.2: collectives between the streams of the stand-in for the
// driver, which OCTET_LIBCUDA must name. A collective blocks its stream until all ranks
// have reached it, as in NCCL. See standin.go.

#define _GNU_SOURCE
#include "standin.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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

enum kind { ALL_REDUCE, REDUCE_SCATTER, ALL_GATHER };

typedef struct {
	comm *by;
	enum kind kind;
	const char *send;
	char *recv;
	size_t count; // elements per rank, of recv in REDUCE_SCATTER
	int type, reduce;
	int captured;
} call;

typedef struct clique {
	struct clique *next;
	unsigned long id;
	int ranks, joined, broken;
	comm *members[];
} clique;

// The communicators of this process, by id.
static clique *cliques;
static pthread_mutex_t joining = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t joined = PTHREAD_COND_INITIALIZER;

typedef struct { char internal[128]; } ncclUniqueId;

enum { ABORTED = 1, DESTROYED };

// A comm is never freed: operations on streams may refer to it.
struct comm {
	clique *of;
	int rank, ordinal;
	int ended;       // 0, ABORTED or DESTROYED
	int pending;     // calls on streams, not completed
	int waits, done; // waits: now is at the head of its stream; done: the collective has run
	call now;
};

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
	static unsigned long last;
	const unsigned long n = __atomic_add_fetch(&last, 1, __ATOMIC_SEQ_CST);
	memset(id, 0, sizeof *id);
	memcpy(id->internal, &n, sizeof n);
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

// enter adds a communicator of this rank to the clique of the id, and waits for the others.
static int enter(comm **out, int ranks, unsigned long id, int rank) {
	clique *all = cliques;
	while (all && all->id != id)
		all = all->next;
	if (!all) {
		all = calloc(1, sizeof *all + ranks * sizeof(comm *));
		*all = (clique){.next = cliques, .id = id, .ranks = ranks};
		cliques = all;
	}
	if (all->ranks != ranks || all->members[rank])
		return INVALID_ARGUMENT;
	comm *mine = calloc(1, sizeof *mine);
	*mine = (comm){.of = all, .rank = rank, .ordinal = driver.ordinal()};
	// A communicator must not have a GPU twice (NCCL user guide, Creating a Communicator).
	for (int r = 0; r < ranks; r++)
		all->broken |= all->members[r] && all->members[r]->ordinal == mine->ordinal;
	all->members[rank] = *out = mine;
	all->joined++;
	pthread_cond_broadcast(&joined);
	while (all->joined < ranks && !all->broken)
		pthread_cond_wait(&joined, &joining);
	return all->broken ? INVALID_USAGE : SUCCESS;
}

int ncclCommInitRank(comm **out, int ranks, ncclUniqueId id, int rank) {
	unsigned long n;
	memcpy(&n, id.internal, sizeof n);
	if (rank < 0 || rank >= ranks || !n)
		return INVALID_ARGUMENT;
	pthread_mutex_lock(&joining);
	int status = load_driver();
	if (!status)
		status = enter(out, ranks, n, rank);
	pthread_mutex_unlock(&joining);
	return status;
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
	for (int r = 0; r < c->of->ranks; r++)
		if (__atomic_load_n(&c->of->members[r]->pending, __ATOMIC_SEQ_CST))
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
static void reduce(const clique *all, const call *c, size_t i, int begin, char *out, size_t at) {
	float sum = 0;
	int32_t max = INT32_MIN;
	for (int r = 0; r < all->ranks; r++) {
		const char *p = all->members[(begin + r) % all->ranks]->now.send + 4 * i;
		float x;
		int32_t n;
		memcpy(&x, p, 4);
		memcpy(&n, p, 4);
		sum = r ? sum + x : x;
		max = n > max ? n : max;
	}
	memcpy(out + 4 * at, c->type == F32 ? (void *)&sum : (void *)&max, 4);
}

static void perform(const clique *all) {
	const call *c = &all->members[0]->now;
	const size_t size = sizes[c->type], n = c->count;
	switch (c->kind) {
	case ALL_REDUCE: {
		char *result = malloc(n * size);
		for (size_t i = 0; i < n; i++)
			reduce(all, c, i, 1 + i * all->ranks / n, result, i);
		for (int r = 0; r < all->ranks; r++)
			memcpy(all->members[r]->now.recv, result, n * size);
		free(result);
		break;
	}
	case REDUCE_SCATTER:
		for (int r = 0; r < all->ranks; r++)
			for (size_t i = 0; i < n; i++)
				reduce(all, c, r * n + i, r + 1, all->members[r]->now.recv, i);
		break;
	default:
		for (int r = 0; r < all->ranks; r++)
			for (int from = 0; from < all->ranks; from++)
				memmove(all->members[r]->now.recv + from * n * size, all->members[from]->now.send, n * size);
	}
}

// same returns whether two ranks' calls agree. All or none must be captured (NCCL user
// guide, Using NCCL with CUDA Graphs).
static int same(const call *a, const call *b) {
	return a->kind == b->kind && a->count == b->count && a->type == b->type && a->reduce == b->reduce && a->captured == b->captured;
}

// report_mismatch fails the communicator: NCCL would wait forever or return mixed data.
static void report_mismatch(clique *all) {
	static const char *const names[] = {"all-reduce", "reduce-scatter", "all-gather"};
	all->broken = 1;
	for (int r = 0; r < all->ranks; r++) {
		const call *c = &all->members[r]->now;
		fprintf(stderr, "stand-in: the ranks' calls differ: rank %d runs %s of %zu elements of type %d%s\n", r, names[c->kind], c->count,
			c->type, c->captured ? ", captured" : "");
	}
}

static void try_all(clique *all) {
	for (int r = 0; r < all->ranks; r++)
		if (!all->members[r]->waits || all->members[r]->done)
			return;
	int agree = 1;
	for (int r = 1; r < all->ranks; r++)
		agree &= same(&all->members[0]->now, &all->members[r]->now);
	if (agree)
		perform(all);
	else
		report_mismatch(all);
	for (int r = 0; r < all->ranks; r++)
		all->members[r]->done = 1;
}

// run_call is the operation on a stream.
static int run_call(void *data) {
	const call *c = data;
	comm *me = c->by;
	clique *all = me->of;
	if (!me->waits) {
		me->waits = 1;
		me->now = *c;
		try_all(all);
	}
	if (!me->done && !me->ended)
		return STANDIN_LATER;
	if (!me->done) // aborted: recv is incomplete
		memset(c->recv, 0xff, c->count * sizes[c->type]);
	me->waits = me->done = 0;
	if (!c->captured)
		__atomic_fetch_sub(&me->pending, 1, __ATOMIC_SEQ_CST);
	return all->broken ? LAUNCH_FAILED : SUCCESS;
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
	c.captured = driver.capturing(stream);
	if (!c.captured)
		__atomic_fetch_add(&c.by->pending, 1, __ATOMIC_SEQ_CST);
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
	return issue((call){c, REDUCE_SCATTER, send, recv, n, type, op}, n * c->of->ranks, n, stream);
}

int ncclAllGather(const void *send, void *recv, size_t n, int type, comm *c, void *stream) {
	return issue((call){c, ALL_GATHER, send, recv, n, type}, n, n * c->of->ranks, stream);
}
