//go:build cuda && cgo && linux

package libcuda

// #cgo CFLAGS: -std=gnu11 -Wall
// #cgo LDFLAGS: -ldl
// #include <stdlib.h>
// #include "libcuda.h"
// #include "api.h"
import "C"

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"unsafe"

	"octet/csrc/dynlib"
)

// Library is a loaded library of the CUDA toolkit.
type Library struct {
	Path    string
	Version string
}

type (
	driver   = *dynlib.Library[*C.octet_driver]
	nvrtc    = *dynlib.Library[*C.octet_nvrtc]
	cublasLt = *dynlib.Library[*C.octet_cublaslt]
	nccl     = *dynlib.Library[*C.octet_nccl]
)

func openDriver() (driver, error) {
	return dynlib.Open[*C.octet_driver]("OCTET_LIBCUDA", []string{"libcuda.so.1"}, C.OCTET_DRIVER_NAMES, C.OCTET_DRIVER_OPTIONAL_NAMES)
}

// openCublasLt loads the newest cuBLASLt that a driver of this version serves;
// 0 is a driver unknown.
func openCublasLt(version int) (cublasLt, error) {
	return newest[*C.octet_cublaslt]("OCTET_LIBCUBLASLT", "libcublasLt.so.", version, C.OCTET_CUBLASLT_NAMES)
}

func openNVRTC(version int) (nvrtc, error) {
	lib, err := newest[*C.octet_nvrtc]("OCTET_LIBNVRTC", "libnvrtc.so.", version, C.OCTET_NVRTC_NAMES)
	if err != nil {
		return nil, err
	}
	path := C.CString(lib.Path)
	defer C.free(unsafe.Pointer(path))
	C.octet_nvrtc_builtins(lib.Table, path)
	return lib, nil
}

// openNCCL loads NCCL, which has one name for CUDA 12 and 13.
func openNCCL() (nccl, error) {
	return dynlib.Open[*C.octet_nccl]("OCTET_LIBNCCL", ncclPaths(), C.OCTET_NCCL_NAMES, "")
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

func newest[Table any](variable, stem string, driver int, names string) (*dynlib.Library[Table], error) {
	paths := candidates(stem, driver)
	if len(paths) == 0 && os.Getenv(variable) == "" {
		return nil, fmt.Errorf("the driver serves CUDA %d.%d and nothing newer; 12 or 13 is needed", driver/1000, driver%1000/10)
	}
	return dynlib.Open[Table](variable, paths, names, "")
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
	list = append(list, "/usr/local/cuda/lib64", filepath.Join("/usr/local/cuda/targets", target, "lib"))
	return append(list, packages()...)
}

// packages are where pip puts NVIDIA's packages for the first python3 of the PATH:
// a machine that PyTorch was installed on has the libraries there, often there
// alone. Those of CUDA 13 share the folder nvidia/cu13/lib, each of CUDA 12, and
// NCCL, has one of its own. Debian's python3 has packages in /usr/local.
func packages() (list []string) {
	python, err := exec.LookPath("python3")
	if err != nil {
		return nil
	}
	for _, prefix := range []string{filepath.Dir(filepath.Dir(python)), "/usr/local"} {
		found, _ := filepath.Glob(filepath.Join(prefix, "lib", "python3*", "*-packages", "nvidia", "*", "lib")) // of a good pattern
		list = append(list, found...)
	}
	return list
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
