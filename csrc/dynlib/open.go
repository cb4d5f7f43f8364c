//go:build (cuda || gaudi) && cgo && linux

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

// Library is a loaded library. Table is a pointer to a C structure of pointers
// to functions, in the order of their names.
type Library[Table any] struct {
	Table   Table
	Path    string   // of the file that was loaded
	Missing []string // the optional functions that it has not, whose pointers are null
}

// opened holds what was loaded for the life of the process, as the libraries
// are.
var opened sync.Map

// Open loads the file that the environment variable names or, if it names none,
// the first of the paths that can be loaded: a bare name is looked for by the
// loader's rules. Required and optional are names of functions, between spaces;
// Table has a pointer for each of the first and then of the second. The error is
// what the loader said of each path, or which required function a library has
// not. Accept, if it is not nil, gets the path of each file that was loaded; a file that it
// returns an error for is unloaded again, and the next path is tried.
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
		if err.Error() == path+notThere { // and not: a library that this one needs
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

// notThere is what glibc's loader says of a file that is nowhere, behind its name.
const notThere = ": cannot open shared object file: No such file or directory"

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
		return nil, fmt.Errorf("no memory for the functions of %s", path)
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

// load keeps the library's symbols to itself (RTLD_LOCAL), as PyTorch's bridge to
// SynapseAI does: the vendors' libraries meet in one process.
func load(path string) (unsafe.Pointer, error) {
	name := C.CString(path)
	defer C.free(unsafe.Pointer(name))
	// dlerror belongs to the thread of the failed call.
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

// Loaded says whether the process has a library of this name, and loads nothing.
func Loaded(name string) bool {
	c := C.CString(name)
	defer C.free(unsafe.Pointer(c))
	handle := C.dlopen(c, C.RTLD_NOW|C.RTLD_LOCAL|C.RTLD_NOLOAD)
	if handle != nil {
		C.dlclose(handle) // it was counted once more
	}
	return handle != nil
}
