//go:build gaudi && cgo && linux

package direct

// #cgo CFLAGS: -std=gnu11 -Wall
// #cgo LDFLAGS: -ldl
// #include <dlfcn.h>
// #include <stdint.h>
// #include <stdlib.h>
//
// typedef uint64_t n;
//
// // A function ignores surplus arguments (System V and AAPCS64: the caller clears the
// // stack).
// static int call(void *f, n *a) {
// 	return ((int (*)(n, n, n, n, n, n, n, n, n, n, n, n))f)(a[0], a[1], a[2], a[3], a[4], a[5], a[6], a[7], a[8], a[9], a[10], a[11]);
// }
//
// // The structure at a[2] is passed by value.
// typedef struct { char bytes[1032]; } id;
// static int call_with_id(void *f, n *a) {
// 	return ((int (*)(n, n, id, n))f)(a[0], a[1], *(id *)a[2], a[3]);
// }
//
// static void *view(n p) { return (void *)p; }
// static void release(n p) { free((void *)p); }
import "C"

import (
	"fmt"
	"unsafe"
)

// Library is a loaded library.
type Library struct{ handle unsafe.Pointer }

// Open loads a library. Different files are different libraries.
func Open(path string) (*Library, error) {
	name := C.CString(path)
	defer C.free(unsafe.Pointer(name))
	handle := C.dlopen(name, C.RTLD_NOW|C.RTLD_LOCAL)
	if handle == nil {
		return nil, fmt.Errorf("load %s: %s", path, C.GoString(C.dlerror()))
	}
	return &Library{handle}, nil
}

const maxArgs = 12 // arguments

func (l *Library) find(name string) unsafe.Pointer {
	text := C.CString(name)
	defer C.free(unsafe.Pointer(text))
	f := C.dlsym(l.handle, text)
	if f == nil {
		panic("the library has no " + name)
	}
	return f
}

// Call calls a function of up to 12 arguments, integers or addresses of C memory, that
// returns an int.
func (l *Library) Call(name string, args ...uint64) int {
	var a [maxArgs]C.n
	for i, arg := range args {
		a[i] = C.n(arg)
	}
	return int(C.call(l.find(name), &a[0]))
}

// CallWithID calls hcclCommInitRank, which takes a structure of 1032 bytes by value.
func (l *Library) CallWithID(name string, out, ranks, id, rank uint64) int {
	a := [maxArgs]C.n{C.n(out), C.n(ranks), C.n(id), C.n(rank)}
	return int(C.call_with_id(l.find(name), &a[0]))
}

// Memory allocates zeroed C memory and returns it with its address.
func Memory(bytes int) ([]byte, uint64) {
	p := C.calloc(1, C.size_t(bytes))
	return unsafe.Slice((*byte)(p), bytes), uint64(uintptr(p))
}

// Free frees memory that Memory allocated.
func Free(address uint64) {
	C.release(C.n(address))
}

// View returns the C memory at an address.
func View(address uint64, bytes int) []byte {
	return unsafe.Slice((*byte)(C.view(C.n(address))), bytes)
}
