//go:build (cuda || gaudi || mpi) && cgo && linux

package dynlib

// #cgo CFLAGS: -D_GNU_SOURCE
// #cgo LDFLAGS: -ldl
// #include <dlfcn.h> // dladdr is GNU's
// #include <stdlib.h>
import "C"

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"
	"sync"
	"unsafe"
)

// Library is a loaded library. Table points to a C struct of function pointers, in the
// order of the functions' names.
type Library[Table any] struct {
	Table   Table
	Path    string   // of the loaded file
	Missing []string // optional functions that the library lacks; their pointers are null
}

// opened holds the loaded libraries, which stay loaded for the life of the process.
var opened sync.Map

// Open loads the file that the environment variable names or, if it names none, the
// first of the paths that can be loaded; the loader searches for bare names. required
// and optional are function names separated by spaces; Table has a pointer for each
// required function, then for each optional one. The error has the loader's message for
// each path, or the first required function that a library lacks. If accept is not nil,
// it gets the path of each loaded file; Open unloads a file for which it returns an
// error, and tries the next path.
func Open[Table any](variable string, paths []string, required, optional string, accept func(path string) error) (*Library[Table], error) {
	if path := os.Getenv(variable); path != "" {
		paths = []string{path}
	}
	var missing, reasons []string
	for _, path := range paths {
		l, err := open[Table](path, required, optional, accept)
		if err == nil {
			return l, nil
		}
		if err.Error() == path+notFound { // the file itself, not a library that it needs
			missing = append(missing, path)
		} else {
			reasons = append(reasons, err.Error())
		}
	}
	if missing != nil {
		reasons = append(reasons, "not found: "+strings.Join(missing, ", "))
	}
	return nil, errors.New(strings.Join(reasons, "; "))
}

// notFound is glibc's message, after the name, for a file that it cannot find.
const notFound = ": cannot open shared object file: No such file or directory"

func open[Table any](path, required, optional string, accept func(path string) error) (*Library[Table], error) {
	if accept == nil {
		accept = func(string) error { return nil }
	}
	type key struct{ path, required, optional string }
	k := key{path, required, optional}
	if stored, ok := opened.Load(k); ok {
		l := stored.(*Library[Table])
		if err := accept(l.Path); err != nil {
			return nil, err
		}
		return l, nil
	}
	handle, err := load(path)
	if err != nil {
		return nil, err
	}
	l := &Library[Table]{Path: path}
	names := strings.Fields(required)
	must := len(names)
	names = append(names, strings.Fields(optional)...)
	memory := C.calloc(C.size_t(len(names)), C.size_t(unsafe.Sizeof(unsafe.Pointer(nil)))) // C keeps it
	if memory == nil {
		return nil, fmt.Errorf("%s: out of memory for its function table", path)
	}
	table := unsafe.Slice((*unsafe.Pointer)(memory), len(names))
	for i, name := range names {
		table[i] = symbol(handle, name)
		switch {
		case table[i] != nil:
		case i < must:
			C.free(memory)
			return nil, fmt.Errorf("%s has no %s", path, name)
		default:
			l.Missing = append(l.Missing, name)
		}
	}
	var info C.Dl_info
	if C.dladdr(table[0], &info) != 0 && info.dli_fname != nil {
		l.Path = C.GoString(info.dli_fname)
	}
	if err := accept(l.Path); err != nil {
		C.free(memory)
		C.dlclose(handle) // none of its functions was called
		return nil, err
	}
	l.Table = *(*Table)(unsafe.Pointer(&memory))
	stored, _ := opened.LoadOrStore(k, l)
	return stored.(*Library[Table]), nil
}

// load opens a library with private symbols (RTLD_LOCAL), as PyTorch's bridge to
// SynapseAI does, because libraries of several vendors share one process.
func load(path string) (unsafe.Pointer, error) {
	name := C.CString(path)
	defer C.free(unsafe.Pointer(name))
	// dlerror is per thread.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	handle := C.dlopen(name, C.RTLD_NOW|C.RTLD_LOCAL)
	if handle == nil {
		return nil, errors.New(C.GoString(C.dlerror()))
	}
	return handle, nil
}

func symbol(handle unsafe.Pointer, name string) unsafe.Pointer {
	c := C.CString(name)
	defer C.free(unsafe.Pointer(c))
	return C.dlsym(handle, c)
}

// Loaded reports whether the process has loaded a library of this name. It loads nothing.
func Loaded(name string) bool {
	c := C.CString(name)
	defer C.free(unsafe.Pointer(c))
	handle := C.dlopen(c, C.RTLD_NOW|C.RTLD_LOCAL|C.RTLD_NOLOAD)
	if handle != nil {
		C.dlclose(handle) // releases the reference that dlopen added
	}
	return handle != nil
}
