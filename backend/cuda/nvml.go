//go:build cuda && cgo && linux

package cuda

import (
	"fmt"
	"os"
	"sync"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"octet/csrc/libcuda"
)

// nvmlLibrary is the part of NVIDIA's management library that this package calls.
// Functions are bound when first called, so only Init may be called before Init has
// succeeded: any other call would end the process with an unresolved symbol. For the same
// reason no function newer than driver 525 is called.
type nvmlLibrary interface {
	Init() nvml.Return
	Shutdown() nvml.Return
	Extensions() nvml.ExtendedInterface
	SystemGetDriverVersion() (string, nvml.Return)
	DeviceGetCount() (int, nvml.Return)
	DeviceGetHandleByIndex(int) (nvml.Device, nvml.Return)
	DeviceGetHandleByPciBusId(string) (nvml.Device, nvml.Return)
}

// nvmlMutex serializes calls of NVML: go-nvml keeps its functions in package variables,
// which Init and Shutdown set.
var nvmlMutex sync.Mutex

// newNVML returns the library without loading it. OCTET_LIBNVML overrides its path.
func newNVML() nvmlLibrary {
	if path := os.Getenv("OCTET_LIBNVML"); path != "" {
		return nvml.New(nvml.WithLibraryPath(path))
	}
	return nvml.New()
}

func startNVML(lib nvmlLibrary) error {
	nvmlMutex.Lock()
	defer nvmlMutex.Unlock()
	if r := lib.Init(); r != nvml.SUCCESS {
		return fmt.Errorf("NVML did not start: %w", r)
	}
	return nil
}

// stopNVML undoes startNVML.
func stopNVML(lib nvmlLibrary) error {
	nvmlMutex.Lock()
	defer nvmlMutex.Unlock()
	if r := lib.Shutdown(); r != nvml.SUCCESS {
		return fmt.Errorf("NVML did not stop: %w", r)
	}
	return nil
}

// queryNVML returns the driver's version and the machine's GPUs, including those that
// CUDA does not show to this process.
func queryNVML(lib nvmlLibrary) (driver string, gpus []libcuda.GPU, err error) {
	nvmlMutex.Lock()
	defer nvmlMutex.Unlock()
	driver, r := lib.SystemGetDriverVersion()
	if r != nvml.SUCCESS {
		return "", nil, fmt.Errorf("NVML does not know the driver's version: %w", r)
	}
	n, r := lib.DeviceGetCount()
	if r != nvml.SUCCESS {
		return "", nil, fmt.Errorf("NVML does not count the GPUs: %w", r)
	}
	for i := range n {
		gpu, r := queryGPU(lib, i)
		if r != nvml.SUCCESS {
			return "", nil, fmt.Errorf("NVML does not describe GPU %d: %w", i, r)
		}
		gpus = append(gpus, gpu)
	}
	return driver, gpus, nil
}

func queryGPU(lib nvmlLibrary, i int) (gpu libcuda.GPU, r nvml.Return) {
	d, r := lib.DeviceGetHandleByIndex(i)
	if r != nvml.SUCCESS {
		return gpu, r
	}
	if gpu.Name, r = d.GetName(); r != nvml.SUCCESS {
		return gpu, r
	}
	if gpu.Major, gpu.Minor, r = d.GetCudaComputeCapability(); r != nvml.SUCCESS {
		return gpu, r
	}
	memory, r := d.GetMemoryInfo()
	gpu.Memory = memory.Total
	return gpu, r
}
