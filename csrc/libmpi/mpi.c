//go:build mpi && cgo && linux

#include "libmpi.h"
#include "api.h"

#include <sched.h>
#include <stdlib.h>
#include <time.h>

// TRY calls a function of the table and returns its error from the shim's entry.
#define TRY(table, name, ...) \
	do { \
		const int try_code = (table)->name(__VA_ARGS__); \
		if (try_code) \
			return (octet_mpi_status){#name, try_code}; \
	} while (0)

// HANDLE is a predefined handle, an address below the first page.
#define HANDLE(type, value) ((type)(uintptr_t)(value))
#define WORLD HANDLE(MPI_Comm, MPI_COMM_WORLD)
#define BYTE HANDLE(MPI_Datatype, MPI_BYTE)

_Static_assert(sizeof(MPI_Count) == sizeof(int64_t) && sizeof(MPI_Aint) == sizeof(int64_t), "64-bit machines only");
_Static_assert(sizeof(MPI_Request) == sizeof(uintptr_t), "a request is a pointer");

octet_mpi_status octet_mpi_abi(const octet_mpi *api, int *major, int *minor) {
	TRY(api, MPI_Abi_get_version, major, minor);
	return (octet_mpi_status){0};
}

octet_mpi_status octet_mpi_version(const octet_mpi *api, char *text) {
	int length;
	TRY(api, MPI_Get_library_version, text, &length);
	return (octet_mpi_status){0};
}

void octet_mpi_text(const octet_mpi *api, int code, char *text) {
	int length;
	text[0] = 0;
	api->MPI_Error_string(code, text, &length); // leaves the text empty on failure
}

octet_mpi_status octet_mpi_init(const octet_mpi *api, octet_mpi_world **out) {
	int provided;
	octet_mpi_world *w = calloc(1, sizeof *w);
	if (!w)
		return (octet_mpi_status){"calloc", 16}; // MPI_ERR_OTHER
	w->api = api;
	w->request = MPI_REQUEST_NULL;
	TRY(api, MPI_Init_thread, NULL, NULL, MPI_THREAD_FUNNELED, &provided);
	TRY(api, MPI_Comm_set_errhandler, WORLD, HANDLE(MPI_Errhandler, MPI_ERRORS_RETURN));
	TRY(api, MPI_Comm_rank, WORLD, &w->rank);
	TRY(api, MPI_Comm_size, WORLD, &w->size);
	if (provided < MPI_THREAD_FUNNELED)
		return (octet_mpi_status){"MPI_Init_thread without MPI_THREAD_FUNNELED", 16};
	int64_t *lists = calloc(4 * (size_t)w->size, sizeof *lists);
	if (!lists)
		return (octet_mpi_status){"calloc", 16};
	w->send_counts = lists;
	w->send_offsets = lists + w->size;
	w->recv_counts = lists + 2 * w->size;
	w->recv_offsets = lists + 3 * w->size;
	*out = w;
	return (octet_mpi_status){0};
}

octet_mpi_status octet_mpi_finalize(octet_mpi_world *w) {
	TRY(w->api, MPI_Finalize);
	return (octet_mpi_status){0};
}

octet_mpi_status octet_mpi_abort(octet_mpi_world *w, int code) {
	TRY(w->api, MPI_Abort, WORLD, code);
	return (octet_mpi_status){0};
}

static int64_t now(void) {
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * INT64_C(1000000000) + t.tv_nsec;
}

octet_mpi_status octet_mpi_bcast(octet_mpi_world *w, void *buffer, int64_t bytes, int root) {
	w->moved = now();
	TRY(w->api, MPI_Ibcast_c, buffer, bytes, BYTE, root, WORLD, (MPI_Request *)&w->request);
	return (octet_mpi_status){0};
}

octet_mpi_status octet_mpi_alltoall(octet_mpi_world *w, const void *send, void *recv) {
	w->moved = now();
	TRY(w->api, MPI_Ialltoallv_c, send, w->send_counts, (const MPI_Aint *)w->send_offsets, BYTE, recv, w->recv_counts,
	    (const MPI_Aint *)w->recv_offsets, BYTE, WORLD, (MPI_Request *)&w->request);
	return (octet_mpi_status){0};
}

octet_mpi_status octet_mpi_allgather(octet_mpi_world *w, const void *send, int64_t bytes, void *recv) {
	w->moved = now();
	TRY(w->api, MPI_Iallgatherv_c, send ? send : HANDLE(const void *, MPI_IN_PLACE), bytes, BYTE, recv, w->recv_counts,
	    (const MPI_Aint *)w->recv_offsets, BYTE, WORLD, (MPI_Request *)&w->request);
	return (octet_mpi_status){0};
}

// MPI moves data only within its calls. MPI_Test does not tell whether it moved any; a call
// that takes WORKED or longer did, or was interrupted, which is harmless here.
enum {
	WORKED = 3000,      // ns; without data the call takes some hundred
	YIELDING = 50000,   // ns without data until the thread sleeps
	SHORTEST = 50000,   // ns of a sleep, plus the kernel's timer slack of 50 µs
	LONGEST = 1000000,  // ns
	SHARE = 16,         // a sleep adds at most this part to the time waited so far
};

octet_mpi_status octet_mpi_wait(octet_mpi_world *w, int64_t limit) {
	const int64_t begin = now();
	for (;;) {
		const int64_t before = now();
		TRY(w->api, MPI_Test, (MPI_Request *)&w->request, &w->done, HANDLE(MPI_Status *, MPI_STATUS_IGNORE));
		if (w->done)
			return (octet_mpi_status){0};
		const int64_t after = now();
		if (after - before >= WORKED)
			w->moved = after;
		if (after - begin >= limit)
			return (octet_mpi_status){0};
		const int64_t idle = after - w->moved;
		if (idle < YIELDING) {
			sched_yield();
			continue;
		}
		const int64_t sleep = idle / SHARE < SHORTEST ? SHORTEST : idle / SHARE > LONGEST ? LONGEST : idle / SHARE;
		nanosleep(&(struct timespec){.tv_nsec = sleep}, NULL);
	}
}
