//go:build cuda && cgo && linux

package cuda

import (
	"fmt"

	"octet/backend"
	"octet/csrc/libcuda"
)

// fixDriver is how to get a driver that the rest can work with: CUDA 12 needs
// 525, CUDA 13 needs 580 (NVIDIA's compatibility table).
const fixDriver = "install the NVIDIA driver, 525 or later (580 for CUDA 13)"

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
		nvml = backend.Finding{What: nvml.What, Detail: nvmlErr.Error(), Fix: fixDriver}
		if cudaErr == nil {
			nvml.Detail += "; CUDA works without it"
			nvml.Fix = "in a container, NVIDIA_DRIVER_CAPABILITIES needs utility besides compute"
		}
	}

	cuda := backend.Finding{What: "CUDA driver", OK: true, Detail: fmt.Sprintf("CUDA %s in %s", cudaVersion(driver.Version), driver.Path)}
	switch {
	case cudaErr != nil:
		cuda = backend.Finding{What: cuda.What, Detail: cudaErr.Error(), Fix: fixDriver}
		if nvmlErr == nil {
			cuda.Fix = "the driver itself answers (nvidia-smi): look at CUDA_VISIBLE_DEVICES; in a container, NVIDIA_DRIVER_CAPABILITIES needs compute"
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
		list = append(list, describe(i, gpu))
		if nvmlErr == nil && cudaErr == nil {
			list = append(list, readNow(i, gpu, lib))
		}
	}
	return append(list,
		library("cuBLASLt", driver.Version, libcuda.ProbeCublasLt, "libcublas", "OCTET_LIBCUBLASLT"),
		library("NVRTC", driver.Version, libcuda.ProbeNVRTC, "cuda-nvrtc", "OCTET_LIBNVRTC"),
	)
}

// describe says whether a GPU multiplies FP8: from compute capability 8.9 on.
func describe(i int, gpu libcuda.GPU) backend.Finding {
	f := backend.Finding{
		What: fmt.Sprintf("GPU %d", i),
		OK:   gpu.Major > 8 || gpu.Major == 8 && gpu.Minor >= 9,
		Detail: fmt.Sprintf("%s, compute capability %d.%d, %.1f GiB",
			gpu.Name, gpu.Major, gpu.Minor, float64(gpu.Memory)/(1<<30)),
	}
	if !f.OK {
		f.Detail += ": no FP8 matrix units"
		f.Fix = "FP8 needs compute capability 8.9 or later: Ada, Hopper, Blackwell"
	}
	return f
}

// readNow says what the sensors of a GPU tell, by a library that was started.
func readNow(i int, gpu libcuda.GPU, lib nvmlLibrary) backend.Finding {
	f := backend.Finding{What: fmt.Sprintf("GPU %d now", i)}
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
