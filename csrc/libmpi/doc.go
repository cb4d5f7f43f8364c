// Package libmpi exchanges bytes between processes over MPI, for backends whose devices
// have no collectives of their own. It loads an MPI library with the standard ABI (MPI 5.0,
// chapter 20: libmpi_abi.so.1) at run time, through a small C shim with its own
// declarations (api.h). So a build needs a C compiler but no MPI header or library, one
// binary works with every implementation of the ABI, and a missing library is an error
// message. OCTET_LIBMPI sets the file to load instead; tests use it to load the stand-in
// from csrc/standin.
//
// [Open] initializes MPI and returns the World, all processes that the launcher (mpiexec,
// srun) started. Its collectives move bytes unchanged. There is no reduction, because
// MPI_SUM adds in an order that the library chooses; the caller adds in the order of ranks.
//
// # Rules of use
//
//   - All ranks call the same collectives in the same order, with sizes that agree. MPI
//     does not check that: ranks that differ hang or get wrong bytes.
//   - Any goroutine may call a collective; the World runs one at a time. All MPI calls come
//     from one thread (MPI_THREAD_FUNNELED).
//   - MPI does not report a lost rank: a collective without it never completes. The control
//     plane (octet/backend/world) detects the loss and calls [World.Stop].
//   - After an error, every later collective fails, MPI may still write to the buffers of
//     the failed one, and only a new process can use MPI again. The processes exit, or one
//     of them calls Abort.
//   - A process that closed its World ends by [Exit]: os.Exit skips libc's exit handlers, in
//     one of which MPICH tells mpiexec that the process ended as it should.
//
// # Waiting
//
// MPICH spins while it waits, so ranks beyond the number of processors take turns of whole
// time slices. The shim starts nonblocking operations instead and tests them. While data
// moves, and 50 µs after it last moved, it yields the processor between tests; then it
// sleeps, 50 µs at first and 1 ms at most.
//
// Everything but this page and Part is built with -tags mpi and cgo on Linux only. The
// further tag mpi_headers compares api.h with a header of the ABI (headers.c).
package libmpi

// Part is the bytes of one rank in a buffer with parts for all ranks.
type Part struct {
	Offset, Bytes int
}
