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
	"unsafe"
)

// Driver is what a CUDA driver says of itself.
type Driver struct {
	Path    string // of the file that was loaded
	Version int    // the newest CUDA that it serves: 1000·major + 10·minor
	Devices []Device
}

// Device is one GPU.
type Device struct {
	Name         string
	Major, Minor int    // compute capability
	Memory       uint64 // bytes
}

// Library is a loaded library of the CUDA toolkit.
type Library struct {
	Path    string
	Version string
}

// ProbeDriver loads the driver, initialises it and lists the GPUs that it
// shows to this process. The error is what the loader or the driver said;
// Version may be known even then.
func ProbeDriver() (Driver, error) {
	path := C.CString(cmp.Or(os.Getenv("OCTET_LIBCUDA"), "libcuda.so.1"))
	defer C.free(unsafe.Pointer(path))
	var out C.octet_cuda_driver
	C.octet_cuda_probe_driver(path, &out)
	d := Driver{Path: C.GoString(&out.path[0]), Version: int(out.version)}
	for _, device := range out.devices[:out.count] {
		d.Devices = append(d.Devices, Device{
			Name:  C.GoString(&device.name[0]),
			Major: int(device.major), Minor: int(device.minor),
			Memory: uint64(device.memory),
		})
	}
	if reason := C.GoString(&out.reason[0]); reason != "" {
		return d, errors.New(reason)
	}
	return d, nil
}

// ProbeCublasLt loads the newest cuBLASLt that a driver of this version
// serves; 0 is a driver unknown.
func ProbeCublasLt(driver int) (Library, error) {
	return probeLibrary("OCTET_LIBCUBLASLT", "libcublasLt.so.", driver,
		func(path *C.char, out *C.octet_cuda_library) { C.octet_cuda_probe_cublaslt(path, out) })
}

// ProbeNVRTC does the same with the run-time compiler.
func ProbeNVRTC(driver int) (Library, error) {
	return probeLibrary("OCTET_LIBNVRTC", "libnvrtc.so.", driver,
		func(path *C.char, out *C.octet_cuda_library) { C.octet_cuda_probe_nvrtc(path, out) })
}

func probeLibrary(variable, stem string, driver int, probe func(*C.char, *C.octet_cuda_library)) (Library, error) {
	paths := candidates(stem, driver)
	if path := os.Getenv(variable); path != "" {
		paths = []string{path}
	}
	if len(paths) == 0 {
		return Library{}, fmt.Errorf("the driver serves CUDA %d.%d and nothing newer; 12 or 13 is needed", driver/1000, driver%1000/10)
	}
	var reasons []string
	for _, path := range paths {
		name := C.CString(path)
		var out C.octet_cuda_library
		probe(name, &out)
		C.free(unsafe.Pointer(name))
		reason := C.GoString(&out.reason[0])
		if reason == "" {
			return Library{
				Path:    C.GoString(&out.path[0]),
				Version: fmt.Sprintf("%d.%d.%d", out.major, out.minor, out.patch),
			}, nil
		}
		reasons = append(reasons, reason)
	}
	return Library{}, errors.New(strings.Join(reasons, "; "))
}

// candidates lists what to try, the newest version first: the bare name, which
// the loader looks for, then files that exist where toolkits install. CUDA
// 13's libraries need a driver that serves 13, CUDA 12's one that serves 12 or
// later (NVIDIA's compatibility table), so the highest version on the machine
// may be the wrong one.
func candidates(stem string, driver int) (paths []string) {
	target := map[string]string{"amd64": "x86_64-linux", "arm64": "sbsa-linux"}[runtime.GOARCH]
	folders := []string{"/usr/local/cuda/lib64", filepath.Join("/usr/local/cuda/targets", target, "lib")}
	if home := os.Getenv("CUDA_HOME"); home != "" {
		folders = append([]string{filepath.Join(home, "lib64"), filepath.Join(home, "lib")}, folders...)
	}
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

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}
