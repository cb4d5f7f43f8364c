//go:build mpi && cgo && linux

package libmpi

// #cgo CFLAGS: -std=gnu11 -Wall
// #include "libmpi.h"
// #include "api.h"
import "C"

import (
	"fmt"
	"strings"

	"octet/csrc/dynlib"
)

// Library is a loaded MPI library.
type Library struct {
	Path string
	// Version is the first line of MPI_Get_library_version: "MPICH Version: 5.0.2".
	Version string
}

type mpi = *dynlib.Library[*C.octet_mpi]

// howToInstall ends the error for a missing library.
const howToInstall = "Octet needs an MPI library with the standard ABI (MPI 5.0): install MPICH 5, for example with " +
	"pip install mpich, and set OCTET_LIBMPI to its libmpi_abi.so.1"

// open loads the library and checks the version of its ABI.
func open() (mpi, error) {
	lib, err := dynlib.Open[*C.octet_mpi]("OCTET_LIBMPI", []string{"libmpi_abi.so.1", "libmpi_abi.so"}, C.OCTET_MPI_NAMES, "", nil)
	if err != nil {
		return nil, fmt.Errorf("%w; %s", err, howToInstall)
	}
	var major, minor C.int
	if err := check(lib, C.octet_mpi_abi(lib.Table, &major, &minor)); err != nil {
		return nil, fmt.Errorf("%s: %w", lib.Path, err)
	}
	if major != 1 {
		return nil, fmt.Errorf("%s has version %d.%d of MPI's ABI: version 1 is needed; %s", lib.Path, major, minor, howToInstall)
	}
	return lib, nil
}

// version returns the first line of the library's description of itself.
func version(lib mpi) (string, error) {
	var text [C.MPI_MAX_LIBRARY_VERSION_STRING]C.char
	if err := check(lib, C.octet_mpi_version(lib.Table, &text[0])); err != nil {
		return "", err
	}
	first, _, _ := strings.Cut(C.GoString(&text[0]), "\n")
	return strings.Join(strings.Fields(first), " "), nil
}

// Probe loads the library without initializing MPI. The error names the files that were
// tried, and says how to install one.
func Probe() (Library, error) {
	lib, err := open()
	if err != nil {
		return Library{}, err
	}
	text, err := version(lib)
	return Library{lib.Path, text}, err
}

// Error is a failed call of MPI.
type Error struct {
	Call string // "MPI_Ialltoallv_c"
	Code int
	Text string // of MPI_Error_string
}

func (e *Error) Error() string {
	return fmt.Sprintf("%s returned %d: %s", e.Call, e.Code, e.Text)
}

// check returns the error of a status, with the library's text.
func check(lib mpi, s C.octet_mpi_status) error {
	if s.code == 0 {
		return nil
	}
	var text [C.MPI_MAX_ERROR_STRING]C.char
	C.octet_mpi_text(lib.Table, s.code, &text[0])
	return &Error{Call: C.GoString(s.call), Code: int(s.code), Text: C.GoString(&text[0])}
}
