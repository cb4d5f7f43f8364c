//go:build cuda && cgo && linux

package cuda

import (
	"cmp"
	"errors"
	"fmt"

	"octet/backend"
	"octet/csrc/libcuda"
)

// fixDriver names the required driver: CUDA 12 needs 525, CUDA 13 needs 580 (NVIDIA's
// compatibility table).
const fixDriver = "install the NVIDIA driver, 525 or later (580 for CUDA 13)"

// Fixes for a missing library of the driver. In a container, the container runtime mounts
// it from the host.
const (
	fixCUDA = fixDriver + ", on the host; start a container with GPUs (docker run --gpus all); or set OCTET_LIBCUDA to libcuda.so.1"
	fixNVML = "it comes with the driver; or set OCTET_LIBNVML to libnvidia-ml.so.1"
)

// fixes are the remedies for a driver that does not start or does not open a GPU, by its
// error code (cuda.h).
var fixes = map[int]string{
	34:  "this libcuda.so.1 is a toolkit's stub for linking: remove its folder, stubs, from LD_LIBRARY_PATH, so that the driver's library is found",
	46:  "the GPU is in compute mode Exclusive Process, with another process on it, or Prohibited (nvidia-smi -q -d COMPUTE): end that process, choose another GPU, such as cuda:1, or set the compute mode to Default",
	100: "the driver shows no GPU to this process: check nvidia-smi and CUDA_VISIBLE_DEVICES; start a container with GPUs",
	802: "start the driver's services; machines with NVSwitch also need nvidia-fabricmanager",
	803: "the versions of the driver's library and of its kernel module differ: restart the machine, or start the container with the host's library",
	999: "the driver's kernel module does not answer: check dmesg, load nvidia_uvm (nvidia-modprobe -u), or restart the machine",
}

// fixOf returns the remedy for a driver that did not start.
func fixOf(err error) string {
	if e := (*libcuda.Error)(nil); errors.As(err, &e) {
		return cmp.Or(fixes[e.Code], fixDriver)
	}
	return fixCUDA
}

// probe checks everything that training on a GPU needs. GPUs are listed as CUDA numbers
// and shows them (CUDA_VISIBLE_DEVICES applies); if CUDA does not start, as NVML sees
// them.
func probe() []backend.Finding {
	lib := newNVML()
	var version string
	var gpus []libcuda.GPU
	nvmlErr := startNVML(lib)
	if nvmlErr == nil {
		defer func() { _ = stopNVML(lib) }() // no more queries follow, so its error does not matter
		version, gpus, nvmlErr = queryNVML(lib)
	}
	driver, cudaErr := libcuda.ProbeDriver()

	nvml := backend.Finding{What: "NVIDIA driver", OK: true, Detail: fmt.Sprintf("version %s, GPUs in the machine: %d", version, len(gpus))}
	if nvmlErr != nil {
		nvml = backend.Finding{What: nvml.What, Detail: nvmlErr.Error(), Fix: fixNVML}
		if cudaErr == nil {
			nvml.Optional = true
			nvml.Detail += "; CUDA works without it"
			nvml.Fix = "in a container, NVIDIA_DRIVER_CAPABILITIES needs utility in addition to compute; or set OCTET_LIBNVML to libnvidia-ml.so.1"
		}
	}

	cuda := backend.Finding{What: "CUDA driver", OK: true, Detail: fmt.Sprintf("CUDA %s in %s", cudaVersion(driver.Version), driver.Path)}
	switch {
	case cudaErr != nil:
		cuda = backend.Finding{What: cuda.What, Detail: cudaErr.Error(), Fix: fixOf(cudaErr)}
		if nvmlErr == nil && (cuda.Fix == fixCUDA || cuda.Fix == fixDriver) {
			cuda.Fix = "the driver works outside CUDA (nvidia-smi); in a container, NVIDIA_DRIVER_CAPABILITIES needs compute"
		}
	case driver.Version < 12000:
		cuda.OK, cuda.Fix = false, fixDriver
		cuda.Detail += ": older than 12"
	}

	list := []backend.Finding{nvml, cuda}
	if cudaErr == nil {
		gpus = driver.GPUs
	}
	for i, gpu := range gpus {
		list = append(list, describe(fmt.Sprintf("GPU %d", i), gpu))
		if nvmlErr == nil && cudaErr == nil {
			list = append(list, readNow(i, gpu, lib))
		}
	}
	list = append(list, libraries(driver.Version, gpus...)...)
	if len(gpus) > 1 {
		f := nccl(driver.Version)
		f.Optional = true
		if !f.OK {
			f.Detail += " (only train.ranks > 1 needs it)"
		}
		list = append(list, f)
	}
	return list
}

// libraries checks the libraries of the CUDA toolkit that GPUs need.
func libraries(driver int, gpus ...libcuda.GPU) []backend.Finding {
	return []backend.Finding{
		library("cuBLASLt", driver, libcuda.ProbeCublasLt, "libcublas", "OCTET_LIBCUBLASLT"),
		compiler(driver, gpus),
	}
}

// nccl checks the NCCL that fits the driver; several ranks need it.
func nccl(driver int) backend.Finding {
	l, err := libcuda.ProbeNCCL(driver)
	if err != nil {
		major := min(max(12, driver/1000), 13)
		return backend.Finding{
			What: "NCCL", Detail: err.Error(),
			Fix: fmt.Sprintf("install NVIDIA's package libnccl2 for CUDA %d (pip: nvidia-nccl-cu%[1]d) or set OCTET_LIBNCCL to its libnccl.so.2", major),
		}
	}
	return backend.Finding{What: "NCCL", OK: true, Detail: fmt.Sprintf("%s in %s", l.Version, l.Path)}
}

// compiler checks NVRTC, and that it supports the GPUs.
func compiler(driver int, gpus []libcuda.GPU) backend.Finding {
	f := library("NVRTC", driver, libcuda.ProbeNVRTC, "cuda-nvrtc", "OCTET_LIBNVRTC")
	if !f.OK {
		return f
	}
	c, err := libcuda.NewCompiler(driver)
	for _, g := range gpus {
		known := false
		if err == nil {
			known, err = c.Compiles(g)
		}
		switch {
		case err != nil:
			return backend.Finding{What: f.What, Detail: err.Error(), Fix: fixCompiler}
		case !known:
			return backend.Finding{
				What: f.What, Fix: fixCompiler,
				Detail: fmt.Sprintf("%s does not support compute capability %d.%d", f.Detail, g.Major, g.Minor),
			}
		}
	}
	return f
}

const fixCompiler = "install NVIDIA's newest package cuda-nvrtc that the driver supports, or set OCTET_LIBNVRTC to its file"

// describe reports a GPU, and whether it has FP8 matrix units: from compute capability
// 8.9 on.
func describe(name string, gpu libcuda.GPU) backend.Finding {
	f := backend.Finding{
		What: name,
		OK:   gpu.Major > 8 || gpu.Major == 8 && gpu.Minor >= 9,
		Detail: fmt.Sprintf("%s, compute capability %d.%d, %.1f GiB",
			gpu.Name, gpu.Major, gpu.Minor, float64(gpu.Memory)/(1<<30)),
	}
	if !f.OK {
		f.Detail += ": no FP8 matrix units"
		f.Fix = "FP8 needs compute capability 8.9 or later (Ada, Hopper, Blackwell)"
	}
	return f
}

// readNow reports what the sensors of a GPU read, by a started library.
func readNow(i int, gpu libcuda.GPU, lib nvmlLibrary) backend.Finding {
	f := backend.Finding{What: fmt.Sprintf("GPU %d now", i), Optional: true}
	s, err := findSensors(lib, gpu.Bus)
	var r backend.Reading
	if err == nil {
		r, err = s.Read()
	}
	if err != nil {
		f.Detail, f.Fix = err.Error(), "optional: without it a run reports no utilization, power and energy"
		return f
	}
	f.OK, f.Detail = true, r.String()
	return f
}

func library(what string, driver int, probe func(int) (libcuda.Library, error), packages, variable string) backend.Finding {
	l, err := probe(driver)
	if err != nil {
		return backend.Finding{
			What: what, Detail: err.Error(),
			Fix: fmt.Sprintf("install NVIDIA's package %s of the CUDA version that the driver supports, or set CUDA_HOME to a toolkit, or %s to the file", packages, variable),
		}
	}
	return backend.Finding{What: what, OK: true, Detail: fmt.Sprintf("%s in %s", l.Version, l.Path)}
}

// cudaVersion formats 12080 as 12.8.
func cudaVersion(v int) string { return fmt.Sprintf("%d.%d", v/1000, v%1000/10) }
