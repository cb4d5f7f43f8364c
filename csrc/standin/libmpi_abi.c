//go:build ignore

// Stand-in for libmpi_abi.so.1: collectives between processes of one machine, over a file
// that all of them map. See standin.go.
//
// Each pair of ranks has a pipe in the file. A collective sends a head and its bytes to
// every rank that needs them; data moves only within calls of MPI_Test, as in MPICH. The
// stand-in rejects what MPI leaves undefined: ranks whose collectives or sizes differ, calls
// from another thread, buffers that overlap, two pending operations.

#define _GNU_SOURCE
#include "setting.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum {
	SUCCESS = 0,
	ERR_BUFFER = 1,
	ERR_ARG = 13,
	ERR_TRUNCATE = 15,
	ERR_OTHER = 16,
};

// Handles of the standard ABI.
enum { FUNNELED = 1024, WORLD = 0x101, ERRORS_RETURN = 0x143, REQUEST_NULL = 0x180, BYTE = 0x247, IN_PLACE = 1 };

// The request of the pending operation.
enum { PENDING = 0x10000 };

enum { RANKS = 32, ROOM = 1 << 18 };

typedef struct {
	_Atomic uint64_t written, read; // bytes so far
	char data[ROOM];
} pipe_;

typedef struct {
	_Atomic int attached[RANKS], arrived, finalized, aborted; // aborted: exit code + 1
	pipe_ pipes[];
} shared;

enum kind { BCAST = 1, ALL_TO_ALL, ALL_GATHER };

typedef struct {
	uint64_t call; // the number of the collective
	uint64_t kind;
	uint64_t bytes;
} head;

// part is one rank's share of the pending operation: the bytes to it, or from it.
typedef struct {
	int active;
	head head;
	char *data;
	uint64_t moved; // of the head and the data
} part;

static struct {
	shared *file;
	const char *path;
	int rank, size;
	pthread_t thread;
	int state; // 0, then 1: initialized, 2: finalized
	uint64_t call;
	int pending;
	part to[RANKS], from[RANKS];
} me;

static int complain(int code, const char *text) {
	fprintf(stderr, "stand-in: rank %d: %s\n", me.rank, text);
	return code;
}

int MPI_Abi_get_version(int *major, int *minor) {
	*major = setting("STANDIN_MPI_ABI", 1);
	*minor = 0;
	return SUCCESS;
}

int MPI_Get_library_version(char *text, int *length) {
	*length = sprintf(text, "Octet's stand-in for MPI:\t1\nbuilt for tests\n");
	return SUCCESS;
}

int MPI_Error_string(int code, char *text, int *length) {
	switch (code) {
	case ERR_BUFFER: *length = sprintf(text, "invalid buffer pointer"); break;
	case ERR_ARG: *length = sprintf(text, "invalid argument"); break;
	case ERR_TRUNCATE: *length = sprintf(text, "message truncated"); break;
	default: *length = sprintf(text, "known error not in this list");
	}
	return SUCCESS;
}

// nap sleeps for 20 µs and ends the process if a rank aborted.
static void nap(void) {
	const int aborted = atomic_load(&me.file->aborted);
	if (aborted)
		_exit(aborted - 1);
	nanosleep(&(struct timespec){.tv_nsec = 20000}, NULL);
}

int MPI_Init_thread(int *argc, char ***argv, int required, int *provided) {
	(void)argc, (void)argv, (void)required;
	if (me.state)
		return complain(ERR_OTHER, "MPI_Init_thread is called twice");
	me.rank = setting("PMI_RANK", 0);
	me.size = setting("PMI_SIZE", 1);
	me.path = getenv("OCTET_STANDIN_MPI");
	if (me.rank < 0 || me.rank >= me.size || me.size > RANKS)
		return complain(ERR_ARG, "PMI_RANK and PMI_SIZE do not fit");
	if (me.size > 1 && !me.path)
		return complain(ERR_ARG, "OCTET_STANDIN_MPI names no file");
	const size_t bytes = sizeof(shared) + (size_t)me.size * me.size * sizeof(pipe_);
	const int fd = me.size > 1 ? open(me.path, O_RDWR | O_CREAT, 0600) : memfd_create("mpi", 0);
	if (fd < 0 || ftruncate(fd, bytes)) // new bytes are 0; the same size changes nothing
		return complain(ERR_OTHER, "cannot create the file of OCTET_STANDIN_MPI");
	me.file = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	close(fd);
	if (me.file == MAP_FAILED)
		return complain(ERR_OTHER, "cannot map the file of OCTET_STANDIN_MPI");
	if (atomic_exchange(&me.file->attached[me.rank], 1))
		return complain(ERR_ARG, "another process has this PMI_RANK");
	atomic_fetch_add(&me.file->arrived, 1);
	while (atomic_load(&me.file->arrived) < me.size)
		nap();
	me.thread = pthread_self();
	me.state = 1;
	*provided = setting("STANDIN_MPI_THREADS", FUNNELED);
	return SUCCESS;
}

// usable returns an error outside MPI_Init_thread and MPI_Finalize, or in another thread.
static int usable(uintptr_t comm) {
	if (me.state != 1)
		return complain(ERR_OTHER, "MPI is not initialized, or finalized");
	if (!pthread_equal(me.thread, pthread_self()))
		return complain(ERR_OTHER, "a call from another thread than that of MPI_Init_thread");
	return comm == WORLD ? SUCCESS : complain(ERR_ARG, "not a communicator");
}

int MPI_Comm_set_errhandler(uintptr_t comm, uintptr_t handler) {
	const int status = usable(comm);
	return status ? status : handler == ERRORS_RETURN ? SUCCESS : ERR_ARG;
}

int MPI_Comm_rank(uintptr_t comm, int *rank) {
	*rank = me.rank;
	return usable(comm);
}

int MPI_Comm_size(uintptr_t comm, int *size) {
	*size = me.size;
	return usable(comm);
}

// begin starts a collective of this kind, without parts.
static int begin(uintptr_t comm, enum kind kind, uintptr_t *request) {
	const int status = usable(comm);
	if (status)
		return status;
	if (me.pending)
		return complain(ERR_OTHER, "two operations are pending");
	me.pending = 1;
	me.call++;
	memset(me.to, 0, sizeof me.to);
	memset(me.from, 0, sizeof me.from);
	for (int r = 0; r < me.size; r++)
		me.to[r].head = me.from[r].head = (head){me.call, kind, 0};
	*request = PENDING;
	return SUCCESS;
}

static void set(part *p, const void *data, uint64_t bytes) {
	p->active = 1;
	p->data = (char *)data;
	p->head.bytes = bytes;
}

// expect prepares a part to receive: bytes that do not arrive are NaN.
static void expect(int rank, void *data, uint64_t bytes) {
	if (bytes)
		memset(data, 0xff, bytes);
	set(&me.from[rank], data, bytes);
}

int MPI_Ibcast_c(void *buffer, int64_t bytes, uintptr_t type, int root, uintptr_t comm, uintptr_t *request) {
	const int status = begin(comm, BCAST, request);
	if (status || type != BYTE || root < 0 || root >= me.size)
		return status ? status : ERR_ARG;
	for (int r = 0; r < me.size; r++)
		if (me.rank == root && r != root)
			set(&me.to[r], buffer, bytes);
	if (me.rank != root)
		expect(root, buffer, bytes);
	return SUCCESS;
}

// overlap returns whether two ranges have a byte in common.
static int overlap(const char *a, int64_t n, const char *b, int64_t m) { return n && m && a < b + m && b < a + n; }

int MPI_Ialltoallv_c(const char *send, const int64_t *sends, const intptr_t *send_at, uintptr_t send_type, char *recv,
		     const int64_t *receives, const intptr_t *recv_at, uintptr_t recv_type, uintptr_t comm, uintptr_t *request) {
	const int status = begin(comm, ALL_TO_ALL, request);
	if (status || send_type != BYTE || recv_type != BYTE)
		return status ? status : ERR_ARG;
	for (int i = 0; i < me.size; i++)
		for (int j = 0; j < me.size; j++)
			if (overlap(send + send_at[i], sends[i], recv + recv_at[j], receives[j]))
				return complain(ERR_BUFFER, "the buffers of the all-to-all overlap");
	if (sends[me.rank] != receives[me.rank])
		return complain(ERR_TRUNCATE, "this rank sends itself other bytes than it receives");
	for (int r = 0; r < me.size; r++) {
		set(&me.to[r], send + send_at[r], sends[r]);
		expect(r, recv + recv_at[r], receives[r]);
	}
	return SUCCESS;
}

int MPI_Iallgatherv_c(const char *send, int64_t bytes, uintptr_t send_type, char *recv, const int64_t *receives, const intptr_t *recv_at,
		      uintptr_t recv_type, uintptr_t comm, uintptr_t *request) {
	const int status = begin(comm, ALL_GATHER, request);
	const int in_place = send == (const char *)IN_PLACE;
	if (status || (send_type != BYTE && !in_place) || recv_type != BYTE)
		return status ? status : ERR_ARG;
	if (in_place) {
		send = recv + recv_at[me.rank];
		bytes = receives[me.rank];
	}
	for (int r = 0; r < me.size; r++) {
		if (!in_place && overlap(send, bytes, recv + recv_at[r], receives[r]))
			return complain(ERR_BUFFER, "the buffers of the all-gather overlap");
		if (r != me.rank || !in_place) {
			set(&me.to[r], send, bytes);
			expect(r, recv + recv_at[r], receives[r]);
		}
	}
	return SUCCESS;
}

static pipe_ *pipe_between(int from, int to) { return &me.file->pipes[from * me.size + to]; }

// copy moves up to n bytes into a pipe, or out of it, and returns how many.
static uint64_t copy(pipe_ *p, char *data, uint64_t n, int in) {
	const uint64_t written = atomic_load(&p->written), read = atomic_load(&p->read);
	const uint64_t room = in ? ROOM - (written - read) : written - read;
	const uint64_t at = (in ? written : read) % ROOM;
	n = n < room ? n : room;
	const uint64_t first = n < ROOM - at ? n : ROOM - at; // up to the end of the ring
	for (int half = 0; half < 2; half++) {
		char *ring = half ? p->data : p->data + at, *mine = half ? data + first : data;
		const uint64_t bytes = half ? n - first : first;
		memcpy(in ? ring : mine, in ? mine : ring, bytes);
	}
	atomic_fetch_add(in ? &p->written : &p->read, n);
	return n;
}

// move moves the rest of a part, as far as the pipe allows. It fails if another rank's head
// differs.
static int move(part *p, pipe_ *pipe, int in) {
	if (!p->active)
		return SUCCESS;
	head seen = p->head;
	if (p->moved < sizeof seen) { // a head moves whole
		const uint64_t written = atomic_load(&pipe->written), read = atomic_load(&pipe->read);
		if (in ? ROOM - (written - read) < sizeof seen : written - read < sizeof seen)
			return SUCCESS;
		p->moved = copy(pipe, (char *)&seen, sizeof seen, in);
	}
	if (memcmp(&seen, &p->head, sizeof seen)) {
		static const char *const names[] = {"?", "broadcast", "all-to-all", "all-gather"};
		fprintf(stderr, "stand-in: the ranks' calls differ: rank %d is at %s %d of %d bytes, another one at %s %d of %d bytes\n", me.rank,
			names[p->head.kind], (int)p->head.call, (int)p->head.bytes, names[seen.kind % 4], (int)seen.call, (int)seen.bytes);
		return ERR_TRUNCATE;
	}
	const uint64_t done = p->moved - sizeof seen;
	p->moved += copy(pipe, p->data + done, p->head.bytes - done, in);
	return SUCCESS;
}

static int complete(const part *p) { return !p->active || p->moved == sizeof(head) + p->head.bytes; }

int MPI_Test(uintptr_t *request, int *done, void *status) {
	int code = usable(WORLD);
	if (code || *request != PENDING || status)
		return code ? code : complain(ERR_ARG, "MPI_Test of no pending request");
	const int aborted = atomic_load(&me.file->aborted);
	if (aborted)
		_exit(aborted - 1);
	*done = 1;
	for (int r = 0; r < me.size; r++) {
		if ((code = move(&me.to[r], pipe_between(me.rank, r), 1)) || (code = move(&me.from[r], pipe_between(r, me.rank), 0)))
			return code;
		*done &= complete(&me.to[r]) && complete(&me.from[r]);
	}
	if (*done) {
		me.pending = 0;
		*request = REQUEST_NULL;
		code = setting("STANDIN_MPI_ERROR", SUCCESS);
	}
	return code;
}

int MPI_Abort(uintptr_t comm, int code) {
	const int status = usable(comm);
	if (status)
		return status;
	atomic_store(&me.file->aborted, code + 1);
	_exit(code);
}

// MPICH tells the launcher in an exit handler that the process has ended as it should; a
// process that ends otherwise leaves this file, which RunRanks finds.
static char unreported[4096];

static void report(void) { unlink(unreported); }

int MPI_Finalize(void) {
	const int status = usable(WORLD);
	if (status || me.pending)
		return status ? status : complain(ERR_OTHER, "MPI_Finalize while an operation is pending");
	me.state = 2;
	if (atomic_fetch_add(&me.file->finalized, 1) == me.size - 1 && me.size > 1)
		unlink(me.path);
	while (atomic_load(&me.file->finalized) < me.size)
		nap();
	if (me.path) {
		snprintf(unreported, sizeof unreported, "%s.%d.unreported", me.path, me.rank);
		close(open(unreported, O_WRONLY | O_CREAT, 0600));
		atexit(report);
	}
	return SUCCESS;
}
