// The part of MPI's standard ABI that Octet uses (MPI 5.0, chapter 20 and appendix A), in
// its own declarations, so that a build needs no MPI header. Functions and constants are
// X-macro lists: the loader's table, the enumeration below and the comparison with a header
// of the ABI (headers.c) expand the same lines.
//
// The functions that end in _c have 64-bit counts.
#ifndef OCTET_MPI_API_H
#define OCTET_MPI_API_H

#include <stddef.h>
#include <stdint.h>

#ifndef OCTET_MPI_HEADERS
typedef intptr_t MPI_Aint;
typedef int64_t MPI_Count;
typedef struct MPI_ABI_Comm *MPI_Comm;
typedef struct MPI_ABI_Datatype *MPI_Datatype;
typedef struct MPI_ABI_Errhandler *MPI_Errhandler;
typedef struct MPI_ABI_Request *MPI_Request;
typedef struct MPI_Status MPI_Status;
#endif

// clang-format off
#define OCTET_MPI_CONSTANTS(X) \
	X(MPI_THREAD_FUNNELED, 1024) \
	X(MPI_COMM_WORLD, 0x101) \
	X(MPI_ERRORS_RETURN, 0x143) \
	X(MPI_REQUEST_NULL, 0x180) \
	X(MPI_BYTE, 0x247) \
	X(MPI_IN_PLACE, 1) \
	X(MPI_STATUS_IGNORE, 0) \
	X(MPI_MAX_ERROR_STRING, 512) \
	X(MPI_MAX_LIBRARY_VERSION_STRING, 8192)

#define OCTET_MPI_FUNCTIONS(X) \
	X(int, MPI_Abi_get_version, (int *, int *)) \
	X(int, MPI_Get_library_version, (char *, int *)) \
	X(int, MPI_Error_string, (int, char *, int *)) \
	X(int, MPI_Init_thread, (int *, char ***, int, int *)) \
	X(int, MPI_Comm_set_errhandler, (MPI_Comm, MPI_Errhandler)) \
	X(int, MPI_Comm_rank, (MPI_Comm, int *)) \
	X(int, MPI_Comm_size, (MPI_Comm, int *)) \
	X(int, MPI_Ibcast_c, (void *, MPI_Count, MPI_Datatype, int, MPI_Comm, MPI_Request *)) \
	X(int, MPI_Ialltoallv_c, (const void *, const MPI_Count *, const MPI_Aint *, MPI_Datatype, void *, const MPI_Count *, const MPI_Aint *, MPI_Datatype, MPI_Comm, MPI_Request *)) \
	X(int, MPI_Iallgatherv_c, (const void *, MPI_Count, MPI_Datatype, void *, const MPI_Count *, const MPI_Aint *, MPI_Datatype, MPI_Comm, MPI_Request *)) \
	X(int, MPI_Test, (MPI_Request *, int *, MPI_Status *)) \
	X(int, MPI_Abort, (MPI_Comm, int)) \
	X(int, MPI_Finalize, (void))
// clang-format on

#ifndef OCTET_MPI_HEADERS
#define X(name, value) name = value,
enum { OCTET_MPI_CONSTANTS(X) };
#undef X

// The table has one pointer per function, in the order of the list.
#define X(result, name, parameters) result(*name) parameters;
typedef struct octet_mpi {
	OCTET_MPI_FUNCTIONS(X)
} octet_mpi;
#undef X

// The names of the table's functions, for the loader, in the order of the table.
#define OCTET_MPI_NAME(result, name, parameters) " " #name
#define OCTET_MPI_NAMES OCTET_MPI_FUNCTIONS(OCTET_MPI_NAME)
#define X(result, name, parameters) +sizeof(void *)
_Static_assert(sizeof(octet_mpi) == OCTET_MPI_FUNCTIONS(X), "one pointer for each name");
#undef X
#endif

#endif
