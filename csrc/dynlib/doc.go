// Package dynlib loads the libraries of accelerators' vendors while octet runs:
// a build needs none of them, one binary meets whichever version the machine
// has, and a missing library is an error message.
//
// A vendor's binding (octet/csrc/libcuda, octet/csrc/libsynapse) declares the
// functions that it calls as one list of C macros and makes two things of it: a
// structure with a pointer for each function, the table, and one string with the
// functions' names, which Open looks up in order. What the two share is the list,
// so they agree.
//
// A library that Open returned stays loaded, and is loaded once: the vendor's code
// may have started threads and registered exit handlers.
//
// Everything but this page is built with -tags cuda or gaudi and cgo on Linux
// only.
package dynlib
