// Package dynlib loads the libraries of accelerator vendors, and MPI, at run time. A build
// needs none of them, one binary works with each version that a machine may have, and a
// missing library is an error message.
//
// A library's binding (octet/csrc/libcuda, octet/csrc/libsynapse, octet/csrc/libmpi) lists
// the functions that it calls as C macros. The list expands twice: to a struct with a pointer for each
// function, the table, and to a string of the functions' names, which Open looks up in
// order. Both come from one list, so they agree.
//
// A library that Open returned stays loaded and is loaded only once: the vendor's code
// may have started threads and registered exit handlers.
//
// Everything but this file needs -tags cuda, gaudi or mpi, cgo and Linux.
package dynlib
