//go:build cuda && cgo && linux

package libcuda

// #cgo CFLAGS: -std=gnu11 -Wall
// #cgo LDFLAGS: -ldl
// #include <stdlib.h>
// #include "libcuda.h"
// #include "api.h"
import "C"

import (
	"debug/elf"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
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
	return dynlib.Open[*C.octet_driver]("OCTET_LIBCUDA", []string{"libcuda.so.1"}, C.OCTET_DRIVER_NAMES, C.OCTET_DRIVER_OPTIONAL_NAMES, nil)
}

// openCublasLt loads the newest cuBLASLt that a driver of this version supports; 0 is an
// unknown driver.
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

// openNCCL loads the first NCCL that a driver of this version supports; 0 is an unknown
// driver. NCCL has the same file name for CUDA 12 and 13. One that is built for a newer
// CUDA than the driver's loads, but fails at its first call of the driver.
func openNCCL(driver int) (nccl, error) {
	return dynlib.Open[*C.octet_nccl]("OCTET_LIBNCCL", search("OCTET_LIBNCCL", ncclPaths), C.OCTET_NCCL_NAMES, "", func(path string) error { return supported(path, driver) })
}

// supported returns an error if a driver of this version does not support the CUDA that
// an NCCL was built for. It accepts a file without that information.
func supported(path string, driver int) error {
	built := ncclCUDA(path)
	major, _, _ := strings.Cut(built, ".")
	if n, err := strconv.Atoi(major); err != nil || driver == 0 || n <= driver/1000 {
		return nil
	}
	return fmt.Errorf("%s is NCCL for CUDA %s, the driver supports CUDA %d.%d", path, built, driver/1000, driver%1000/10)
}

// ncclMark matches NCCL's version string, a constant of the library: no function returns
// the CUDA that NCCL was built for.
var ncclMark = regexp.MustCompile(`NCCL version [0-9.]+\+cuda([0-9]+\.[0-9]+)`)

// ncclCUDA returns the CUDA version that an NCCL was built for; empty if the file does
// not contain it. It reads only the section of constants, half a megabyte of hundreds.
func ncclCUDA(path string) string {
	file, err := elf.Open(path)
	if err != nil {
		return ""
	}
	defer func() { _ = file.Close() }() // opened for reading only
	constants := file.Section(".rodata")
	if constants == nil {
		return ""
	}
	text, err := constants.Data()
	if found := ncclMark.FindSubmatch(text); err == nil && found != nil {
		return string(found[1])
	}
	return ""
}

func ncclPaths() []string {
	const name = "libnccl.so.2"
	folders := folders()
	if home := os.Getenv("CUDA_HOME"); home != "" { // pip: nvidia/cu13 and, next to it, nvidia/nccl
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

// search returns the paths that find lists, or none if the environment variable names a file,
// which dynlib.Open then loads instead.
func search(variable string, find func() []string) []string {
	if os.Getenv(variable) != "" {
		return nil
	}
	return find()
}

func newest[Table any](variable, stem string, driver int, names string) (*dynlib.Library[Table], error) {
	paths := search(variable, func() []string { return candidates(stem, driver) })
	if len(paths) == 0 && os.Getenv(variable) == "" {
		return nil, fmt.Errorf("the driver supports only CUDA %d.%d; 12 or 13 is needed", driver/1000, driver%1000/10)
	}
	return dynlib.Open[Table](variable, paths, names, "", nil)
}

// candidates lists the files to try, the newest version first: the bare name, for the
// loader's search path, then existing files in the folders of toolkits. CUDA 13's
// libraries need a driver for 13, CUDA 12's one for 12 or later (NVIDIA's compatibility
// table), so the highest version on the machine may not work.
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

// failed returns the error of a status, with its library's text, or nil for success.
func failed(s C.octet_status, text func(C.int) *C.char) error {
	if s.code == 0 {
		return nil
	}
	return &Error{Call: C.GoString(s.call), Code: int(s.code), Text: C.GoString(text(s.code))}
}

// driverError returns the error of a driver call.
func driverError(api *C.octet_driver, s C.octet_status) error {
	return failed(s, func(code C.int) *C.char { return C.octet_error_text(api, code) })
}
