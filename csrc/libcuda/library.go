//go:build cuda && cgo && linux

package libcuda

// #cgo CFLAGS: -std=gnu11 -Wall
// #cgo LDFLAGS: -ldl
// #include <stdlib.h>
// #include "libcuda.h"
import "C"

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"unsafe"
)

// Library is a loaded library of the CUDA toolkit.
type Library struct {
	Path    string
	Version string
}

// A loaded is a library's table of functions, and the file it came from.
type loaded[API any] struct {
	api  API
	path string
}

type (
	driver   = loaded[*C.octet_driver]
	nvrtc    = loaded[*C.octet_nvrtc]
	cublasLt = loaded[*C.octet_cublaslt]
	nccl     = loaded[*C.octet_nccl]
)

// opened holds what was loaded, by kind and path: for the life of the process,
// as the libraries are.
var opened sync.Map

func open[API comparable](path string, load func(*C.char, *C.octet_loaded) API) (loaded[API], error) {
	type key struct {
		none API // tells the kinds apart
		path string
	}
	if l, ok := opened.Load(key{path: path}); ok {
		return l.(loaded[API]), nil
	}
	name := C.CString(path)
	defer C.free(unsafe.Pointer(name))
	var out C.octet_loaded
	api := load(name, &out)
	if reason := C.GoString(&out.reason[0]); reason != "" {
		return loaded[API]{}, errors.New(reason)
	}
	l, _ := opened.LoadOrStore(key{path: path}, loaded[API]{api, C.GoString(&out.path[0])})
	return l.(loaded[API]), nil
}

func openDriver() (driver, error) {
	return open(cmp.Or(os.Getenv("OCTET_LIBCUDA"), "libcuda.so.1"),
		func(path *C.char, out *C.octet_loaded) *C.octet_driver { return C.octet_driver_load(path, out) })
}

// openCublasLt loads the newest cuBLASLt that a driver of this version serves;
// 0 is a driver unknown.
func openCublasLt(version int) (cublasLt, error) {
	return newest("OCTET_LIBCUBLASLT", "libcublasLt.so.", version,
		func(path *C.char, out *C.octet_loaded) *C.octet_cublaslt { return C.octet_cublaslt_load(path, out) })
}

func openNVRTC(version int) (nvrtc, error) {
	return newest("OCTET_LIBNVRTC", "libnvrtc.so.", version,
		func(path *C.char, out *C.octet_loaded) *C.octet_nvrtc { return C.octet_nvrtc_load(path, out) })
}

// openNCCL loads NCCL, which has one name for CUDA 12 and 13.
func openNCCL() (nccl, error) {
	return first("OCTET_LIBNCCL", ncclPaths(),
		func(path *C.char, out *C.octet_loaded) *C.octet_nccl { return C.octet_nccl_load(path, out) })
}

func ncclPaths() []string {
	const name = "libnccl.so.2"
	folders := folders()
	if home := os.Getenv("CUDA_HOME"); home != "" { // pip: nvidia/cu13 and, beside it, nvidia/nccl
		folders = append(folders, filepath.Join(home, "..", "nccl", "lib"))
	}
	paths := []string{name}
	for _, folder := range folders {
		if file := filepath.Join(folder, name); exists(file) {
			paths = append(paths, file)
		}
	}
	return paths
}

func newest[API comparable](variable, stem string, driver int, load func(*C.char, *C.octet_loaded) API) (loaded[API], error) {
	paths := candidates(stem, driver)
	if len(paths) == 0 && os.Getenv(variable) == "" {
		return loaded[API]{}, fmt.Errorf("the driver serves CUDA %d.%d and nothing newer; 12 or 13 is needed", driver/1000, driver%1000/10)
	}
	return first(variable, paths, load)
}

// first loads the file that a variable names or, if it names none, the first of
// the paths that can be loaded.
func first[API comparable](variable string, paths []string, load func(*C.char, *C.octet_loaded) API) (loaded[API], error) {
	if path := os.Getenv(variable); path != "" {
		paths = []string{path}
	}
	var reasons []string
	for _, path := range paths {
		l, err := open(path, load)
		if err == nil {
			return l, nil
		}
		reasons = append(reasons, err.Error())
	}
	return loaded[API]{}, errors.New(strings.Join(reasons, "; "))
}

// candidates lists what to try, the newest version first: the bare name, which
// the loader looks for, then files that exist where toolkits install. CUDA
// 13's libraries need a driver that serves 13, CUDA 12's one that serves 12 or
// later (NVIDIA's compatibility table), so the highest version on the machine
// may be the wrong one.
func candidates(stem string, driver int) (paths []string) {
	folders := folders()
	for _, major := range []int{13, 12} {
		if driver != 0 && driver/1000 < major {
			continue
		}
		name := fmt.Sprint(stem, major)
		paths = append(paths, name)
		for _, folder := range folders {
			if file := filepath.Join(folder, name); exists(file) {
				paths = append(paths, file)
			}
		}
	}
	return paths
}

// folders are where toolkits install libraries.
func folders() (list []string) {
	if home := os.Getenv("CUDA_HOME"); home != "" {
		list = append(list, filepath.Join(home, "lib64"), filepath.Join(home, "lib"))
	}
	target := map[string]string{"amd64": "x86_64-linux", "arm64": "sbsa-linux"}[runtime.GOARCH]
	return append(list, "/usr/local/cuda/lib64", filepath.Join("/usr/local/cuda/targets", target, "lib"))
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// failed makes an error of a status that is not a success, with the text that
// the status's library has for it.
func failed(s C.octet_status, text func(C.int) *C.char) error {
	if s.code == 0 {
		return nil
	}
	return &Error{Call: C.GoString(s.call), Code: int(s.code), Text: C.GoString(text(s.code))}
}

// driverError is the error of a call of the driver.
func driverError(api *C.octet_driver, s C.octet_status) error {
	return failed(s, func(code C.int) *C.char { return C.octet_error_text(api, code) })
}
