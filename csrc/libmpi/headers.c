//go:build mpi && cgo && linux && mpi_headers

// Compares the declarations of api.h with a header of MPI's standard ABI. It only compiles;
// a static assertion names the line that differs. Of MPICH 5 from pip:
//
//	CGO_CFLAGS=-I$VIRTUAL_ENV/include go vet -tags mpi,mpi_headers ./csrc/libmpi

#include <mpi_abi.h>

#define OCTET_MPI_HEADERS
#include "api.h"

#define CONSTANT(name, value) _Static_assert((intptr_t)name == value, #name);
OCTET_MPI_CONSTANTS(CONSTANT)

_Static_assert(sizeof(MPI_Aint) == sizeof(intptr_t) && sizeof(MPI_Count) == sizeof(int64_t), "the widths");

#define FUNCTION(result, name, parameters) \
	_Static_assert(__builtin_types_compatible_p(result(*) parameters, __typeof__(&name)), #name);
OCTET_MPI_FUNCTIONS(FUNCTION)
