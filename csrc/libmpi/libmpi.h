// The shim's interface to Go. An entry returns the failed call and its code; code 0 is
// success. All entries but the first two run on the thread that called octet_mpi_init.
#ifndef OCTET_LIBMPI_H
#define OCTET_LIBMPI_H

#include <stddef.h>
#include <stdint.h>

typedef struct {
	const char *call; // of static lifetime
	int code;
} octet_mpi_status;

// The table of the functions of a loaded library.
typedef struct octet_mpi octet_mpi;

// A world is in C memory, because MPI keeps pointers to its request and to its counts and
// offsets while an operation is pending.
typedef struct {
	const octet_mpi *api;
	int rank, size;
	// For each rank. MPI_Count and MPI_Aint have these widths on 64-bit machines.
	int64_t *send_counts, *send_offsets, *recv_counts, *recv_offsets;
	uintptr_t request;
	int done;      // the operation has completed
	int64_t moved; // when data of the pending operation last moved: ns of the monotonic clock
} octet_mpi_world;

octet_mpi_status octet_mpi_abi(const octet_mpi *api, int *major, int *minor);
// text has MPI_MAX_LIBRARY_VERSION_STRING bytes.
octet_mpi_status octet_mpi_version(const octet_mpi *api, char *text);
// text has MPI_MAX_ERROR_STRING bytes.
void octet_mpi_text(const octet_mpi *api, int code, char *text);

// octet_mpi_init waits until all ranks have called it. Without an error, *out is a world;
// the caller never frees it.
octet_mpi_status octet_mpi_init(const octet_mpi *api, octet_mpi_world **out);
octet_mpi_status octet_mpi_finalize(octet_mpi_world *w);
octet_mpi_status octet_mpi_abort(octet_mpi_world *w, int code);

// These start an operation; at most one is pending. The buffers stay allocated until
// octet_mpi_wait sets done. Counts and offsets are in the world.
octet_mpi_status octet_mpi_bcast(octet_mpi_world *w, void *buffer, int64_t bytes, int root);
octet_mpi_status octet_mpi_alltoall(octet_mpi_world *w, const void *send, void *recv);
// send is NULL if this rank's part is in recv already.
octet_mpi_status octet_mpi_allgather(octet_mpi_world *w, const void *send, int64_t bytes, void *recv);

// octet_mpi_wait tests the pending operation until it completes or limit nanoseconds are
// over, and sets done.
octet_mpi_status octet_mpi_wait(octet_mpi_world *w, int64_t limit);

#endif
