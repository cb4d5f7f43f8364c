//go:build cuda && cgo && linux

package cuda

import (
	"cmp"
	"errors"
	"fmt"

	"octet/backend"
	"octet/csrc/libcuda"
)

// fixDriver is how to get a driver that the rest can work with: CUDA 12 needs
// 525, CUDA 13 needs 580 (NVIDIA's compatibility table).
const fixDriver = "install the NVIDIA driver, 525 or later (580 for CUDA 13)"

// What to do where a library of the driver is not found: in a container the runtime
// brings it in from the host.
const (
	fixCUDA = fixDriver + ", on the host; in a container start it with GPUs (docker run --gpus all); or point OCTET_LIBCUDA at libcuda.so.1"
	fixNVML = "it comes with the driver; or point OCTET_LIBNVML at libnvidia-ml.so.1"
)

// fixes are what to do about a driver that is there and does not start, or does
// not give a GPU, by its code (cuda.h).
var fixes = map[int]string{
	34:  "this libcuda.so.1 is the one for linking that comes with a toolkit: take its folder, stubs, out of LD_LIBRARY_PATH, so that the driver's own is found",
	46:  "another process has the GPU for itself, or nobody may have it (nvidia-smi -q -d COMPUTE): end that process, choose another GPU, such as cuda:1, or have the compute mode set to Default",
	100: "the driver shows no GPU to this process: look at nvidia-smi and CUDA_VISIBLE_DEVICES; a container has to be given GPUs",
	802: "the driver's services have to run, on machines with NVSwitch nvidia-fabricmanager too",
	803: "the driver's library is of another version than the kernel's part: restart the machine, or the container with the host's",
	999: "the kernel's part of the driver does not answer: look at dmesg, load nvidia_uvm (nvidia-modprobe -u), or restart the machine",
}

// fixOf is what to do about a driver that did not answer.
func fixOf(err error) string {
	if e := (*libcuda.Error)(nil); errors.As(err, &e) {
		return cmp.Or(fixes[e.Code], fixDriver)
	}
	return fixCUDA
}

// probe looks for everything that training on a GPU will need. GPUs are listed
// as CUDA numbers and shows them (CUDA_VISIBLE_DEVICES applies); where CUDA
// does not answer, as the management library sees them.
func probe() []backend.Finding {
	lib := newNVML()
	var version string
	var gpus []libcuda.GPU
	nvmlErr := startNVML(lib)
	if nvmlErr == nil {
		defer func() { _ = stopNVML(lib) }() // it was asked everything: nothing to do about an error
		version, gpus, nvmlErr = askNVML(lib)
	}
	driver, cudaErr := libcuda.ProbeDriver()

	nvml := backend.Finding{What: "NVIDIA driver", OK: true, Detail: fmt.Sprintf("version %s, GPUs in the machine: %d", version, len(gpus))}
	if nvmlErr != nil {
		nvml = backend.Finding{What: nvml.What, Detail: nvmlErr.Error(), Fix: fixNVML}
		if cudaErr == nil {
			nvml.Optional = true
			nvml.Detail += "; CUDA works without it"
			nvml.Fix = "in a container, NVIDIA_DRIVER_CAPABILITIES needs utility besides compute; or point OCTET_LIBNVML at libnvidia-ml.so.1"
		}
	}

	cuda := backend.Finding{What: "CUDA driver", OK: true, Detail: fmt.Sprintf("CUDA %s in %s", cudaVersion(driver.Version), driver.Path)}
	switch {
	case cudaErr != nil:
		cuda = backend.Finding{What: cuda.What, Detail: cudaErr.Error(), Fix: fixOf(cudaErr)}
		if nvmlErr == nil && (cuda.Fix == fixCUDA || cuda.Fix == fixDriver) {
			cuda.Fix = "the driver itself answers (nvidia-smi); in a container, NVIDIA_DRIVER_CAPABILITIES needs compute"
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

// libraries looks for those of the toolkit that GPUs need.
func libraries(driver int, gpus ...libcuda.GPU) []backend.Finding {
	return []backend.Finding{
		library("cuBLASLt", driver, libcuda.ProbeCublasLt, "libcublas", "OCTET_LIBCUBLASLT"),
		compiler(driver, gpus),
	}
}

// nccl looks for the NCCL that the driver serves, which several ranks need.
func nccl(driver int) backend.Finding {
	l, err := libcuda.ProbeNCCL(driver)
	if err != nil {
		major := min(max(12, driver/1000), 13)
		return backend.Finding{
			What: "NCCL", Detail: err.Error(),
			Fix: fmt.Sprintf("install NVIDIA's package libnccl2 for CUDA %d (pip: nvidia-nccl-cu%[1]d) or point OCTET_LIBNCCL at its libnccl.so.2", major),
		}
	}
	return backend.Finding{What: "NCCL", OK: true, Detail: fmt.Sprintf("%s in %s", l.Version, l.Path)}
}

// compiler looks for NVRTC, and whether it is as new as the GPUs.
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
				Detail: fmt.Sprintf("%s does not know compute capability %d.%d", f.Detail, g.Major, g.Minor),
			}
		}
	}
	return f
}

const fixCompiler = "install NVIDIA's newest package cuda-nvrtc that the driver serves, or point OCTET_LIBNVRTC at its file"

// describe says whether a GPU multiplies FP8: from compute capability 8.9 on.
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

// readNow says what the sensors of a GPU tell, by a library that was started.
func readNow(i int, gpu libcuda.GPU, lib nvmlLibrary) backend.Finding {
	f := backend.Finding{What: fmt.Sprintf("GPU %d now", i), Optional: true}
	s, err := findSensors(lib, gpu.Bus)
	var r backend.Reading
	if err == nil {
		r, err = s.Read()
	}
	if err != nil {
		f.Detail, f.Fix = err.Error(), "a run does without: no utilisation, power and energy in what it tells"
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
			Fix: fmt.Sprintf("install NVIDIA's package %s of the CUDA version that the driver serves, point CUDA_HOME at a toolkit, or %s at the file", packages, variable),
		}
	}
	return backend.Finding{What: what, OK: true, Detail: fmt.Sprintf("%s in %s", l.Version, l.Path)}
}

// cudaVersion spells 12080 as 12.8.
func cudaVersion(v int) string { return fmt.Sprintf("%d.%d", v/1000, v%1000/10) }
