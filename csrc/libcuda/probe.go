//go:build cuda && cgo && linux

package libcuda

// #include "libcuda.h"
import "C"

import "fmt"

// Driver describes a CUDA driver.
type Driver struct {
	Path    string // of the loaded file
	Version int    // the newest CUDA that it supports: 1000·major + 10·minor
	GPUs    []GPU
}

// GPU describes a device, as the driver reports it.
type GPU struct {
	Name         string
	Bus          string // address on the PCI bus, "0000:0b:00.0", by which NVML finds it; empty if the driver does not report it
	Major, Minor int    // compute capability
	Memory       uint64 // bytes
	Processors   int    // multiprocessors
	Shared       int    // maximum bytes of shared memory per block
}

// ProbeDriver loads and initializes the driver and lists the GPUs that it shows to this
// process. The error is that of the loader or the driver; Version may be set even then.
func ProbeDriver() (Driver, error) {
	lib, err := openDriver()
	if err != nil {
		return Driver{}, err
	}
	d := Driver{Path: lib.Path, Version: int(C.octet_version(lib.Table))}
	var count C.int
	if err := driverError(lib.Table, C.octet_count(lib.Table, &count)); err != nil {
		return d, err
	}
	for i := range int(count) {
		var id C.int
		if err := driverError(lib.Table, C.octet_id(lib.Table, C.int(i), &id)); err != nil {
			return d, err
		}
		gpu, err := describe(lib, id)
		if err != nil {
			return d, err
		}
		d.GPUs = append(d.GPUs, gpu)
	}
	return d, nil
}

func describe(lib driver, id C.int) (GPU, error) {
	var out C.octet_gpu
	if err := driverError(lib.Table, C.octet_describe(lib.Table, id, &out)); err != nil {
		return GPU{}, err
	}
	return GPU{
		Name: C.GoString(&out.name[0]), Bus: C.GoString(&out.bus[0]), Major: int(out.major), Minor: int(out.minor), Memory: uint64(out.memory),
		Processors: int(out.processors), Shared: int(out.shared),
	}, nil
}

// ProbeCublasLt loads the newest cuBLASLt that a driver of this version supports; 0 is an
// unknown driver.
func ProbeCublasLt(driver int) (Library, error) {
	lib, err := openCublasLt(driver)
	if err != nil {
		return Library{}, err
	}
	return Library{lib.Path, cublasLtVersion(lib)}, nil
}

func cublasLtVersion(lib cublasLt) string {
	v := int(C.octet_cublaslt_version(lib.Table))
	return fmt.Sprintf("%d.%d.%d", v/10000, v/100%100, v%100)
}

// ProbeNVRTC loads the newest NVRTC that a driver of this version supports; 0 is an
// unknown driver.
func ProbeNVRTC(driver int) (Library, error) {
	lib, err := openNVRTC(driver)
	if err != nil {
		return Library{}, err
	}
	version, err := nvrtcVersion(lib)
	return Library{lib.Path, version}, err
}

func nvrtcVersion(lib nvrtc) (string, error) {
	var major, minor C.int
	err := nvrtcError(lib.Table, C.octet_nvrtc_version(lib.Table, &major, &minor))
	return fmt.Sprintf("%d.%d", major, minor), err
}

// ProbeNCCL loads the first NCCL that a driver of this version supports; 0 is an unknown
// driver.
func ProbeNCCL(driver int) (Library, error) {
	lib, err := openNCCL(driver)
	if err != nil {
		return Library{}, err
	}
	return Library{lib.Path, ncclVersion(lib)}, nil
}

// ncclVersion formats NCCL's version. Until 2.8, NCCL_VERSION (nccl.h) had one digit for
// the minor number.
func ncclVersion(lib nccl) string {
	v := int(C.octet_nccl_version(lib.Table))
	if v < 10000 {
		return fmt.Sprintf("%d.%d.%d", v/1000, v/100%10, v%100)
	}
	return fmt.Sprintf("%d.%d.%d", v/10000, v/100%100, v%100)
}
