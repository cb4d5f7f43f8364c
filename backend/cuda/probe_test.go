//go:build cuda && cgo && linux

package cuda

import (
	"path/filepath"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/stretchr/testify/require"

	"octet/backend"
	"octet/csrc/standin"
)

func find(t *testing.T, list []backend.Finding, what string) backend.Finding {
	t.Helper()
	for _, f := range list {
		if f.What == what {
			return f
		}
	}
	require.Fail(t, "no finding "+what, "%+v", list)
	return backend.Finding{}
}

// hide hides every library, even on a machine that has them.
func hide(t *testing.T) {
	missing := filepath.Join(t.TempDir(), "missing.so")
	for _, variable := range []string{"OCTET_LIBNVML", "OCTET_LIBCUDA", "OCTET_LIBCUBLASLT", "OCTET_LIBNVRTC", "OCTET_LIBNCCL"} {
		t.Setenv(variable, missing)
	}
}

func TestProbeWithoutLibraries(t *testing.T) {
	hide(t)
	list := probe()
	require.Len(t, list, 4)
	for _, f := range list {
		require.False(t, f.OK, "%+v", f)
		require.NotEmpty(t, f.Detail)
		require.NotEmpty(t, f.Fix)
	}
	require.Equal(t, "install the NVIDIA driver, 525 or later (580 for CUDA 13), on the host; start a container with GPUs (docker run --gpus all); "+
		"or set OCTET_LIBCUDA to libcuda.so.1", find(t, list, "CUDA driver").Fix)
	require.Contains(t, find(t, list, "NVIDIA driver").Fix, "or set OCTET_LIBNVML to libnvidia-ml.so.1")
}

// The stand-in for NVML is loaded once: go-nvml binds its functions to the first library
// that it opens.
func TestProbeOfStandIns(t *testing.T) {
	hide(t)
	management, cuda := standin.Build(t, "libnvidia-ml"), standin.Build(t, "libcuda")
	t.Setenv("OCTET_LIBNVML", management)
	t.Setenv("OCTET_LIBCUDA", cuda)
	blas, compiler := standin.Build(t, "libcublaslt"), standin.Build(t, "libnvrtc")
	t.Setenv("OCTET_LIBCUBLASLT", blas)
	t.Setenv("OCTET_LIBNVRTC", compiler)
	nccl := standin.Build(t, "libnccl")
	t.Setenv("OCTET_LIBNCCL", nccl)
	standin.Set(t, "STANDIN_GPUS", "2")
	require.Equal(t, []backend.Finding{
		{What: "NVIDIA driver", OK: true, Detail: "version 580.00.01, GPUs in the machine: 1"},
		{What: "CUDA driver", OK: true, Detail: "CUDA 13.0 in " + cuda},
		{What: "GPU 0", OK: true, Detail: "Stand-in 0, compute capability 9.0, 80.0 GiB"},
		{What: "GPU 0 now", Optional: true, OK: true, Detail: "97% busy, 6.0 of 24.0 GiB used, 300 W, 60 °C, 1755 MHz, throttled by power cap, counts its energy"},
		{What: "GPU 1", OK: true, Detail: "Stand-in 1, compute capability 9.0, 80.0 GiB"},
		{
			What: "GPU 1 now", Optional: true, Detail: "NVML does not show the GPU at 0000:11:00.0: not found",
			Fix: "optional: without it a run reports no utilization, power and energy",
		},
		{What: "cuBLASLt", OK: true, Detail: "13.1.2 in " + blas},
		{What: "NVRTC", OK: true, Detail: "13.99 in " + compiler},
		{What: "NCCL", Optional: true, OK: true, Detail: "2.30.7 in " + nccl},
	}, probe())

	t.Run("CUDA shows no GPU", func(t *testing.T) {
		standin.Set(t, "STANDIN_GPUS", "0")
		list := probe()
		f := find(t, list, "CUDA driver")
		require.False(t, f.OK)
		require.False(t, f.Optional)
		require.Contains(t, f.Detail, "cuInit returned 100")
		require.Contains(t, f.Fix, "CUDA_VISIBLE_DEVICES")
		require.Equal(t, "Managed stand-in, compute capability 8.9, 24.0 GiB", find(t, list, "GPU 0").Detail)
		require.True(t, find(t, list, "cuBLASLt").OK)
	})
	t.Run("NVML is missing", func(t *testing.T) {
		t.Setenv("OCTET_LIBNVML", filepath.Join(t.TempDir(), "missing.so"))
		list := probe()
		f := find(t, list, "NVIDIA driver")
		require.False(t, f.OK)
		require.True(t, f.Optional)
		require.Contains(t, f.Fix, "utility")
		require.True(t, find(t, list, "CUDA driver").OK)
		require.True(t, find(t, list, "GPU 1").OK)
		for _, f := range list {
			require.NotContains(t, f.What, "now")
		}
	})
	t.Run("NCCL is missing", func(t *testing.T) {
		t.Setenv("OCTET_LIBNCCL", filepath.Join(t.TempDir(), "missing.so"))
		f := find(t, probe(), "NCCL")
		require.False(t, f.OK)
		require.Contains(t, f.Detail, "only train.ranks > 1 needs it")
		require.Contains(t, f.Fix, "libnccl2")
		standin.Set(t, "STANDIN_GPUS", "1") // one GPU does not need NCCL
		for _, f := range probe() {
			require.NotEqual(t, "NCCL", f.What)
		}
	})
	t.Run("NCCL is for a newer CUDA", func(t *testing.T) {
		standin.Set(t, "STANDIN_CUDA", "12080")
		f := find(t, probe(), "NCCL")
		require.False(t, f.OK)
		require.Equal(t, nccl+" is NCCL for CUDA 13.0, the driver supports CUDA 12.8 (only train.ranks > 1 needs it)", f.Detail)
		require.Equal(t, "install NVIDIA's package libnccl2 for CUDA 12 (pip: nvidia-nccl-cu12) or set OCTET_LIBNCCL to its libnccl.so.2", f.Fix)
	})
	t.Run("the GPU has no FP8", func(t *testing.T) {
		standin.Set(t, "STANDIN_CAPABILITY", "80")
		f := find(t, probe(), "GPU 0")
		require.False(t, f.OK)
		require.Contains(t, f.Fix, "8.9")
	})
	t.Run("the driver is old", func(t *testing.T) {
		standin.Set(t, "STANDIN_CUDA", "11080")
		f := find(t, probe(), "CUDA driver")
		require.False(t, f.OK)
		require.Contains(t, f.Detail, "CUDA 11.8")
		require.Equal(t, fixDriver, f.Fix)
	})
}

// deadNVML does not start; every call except Init is a nil dereference.
type deadNVML struct{ nvmlLibrary }

func (deadNVML) Init() nvml.Return { return nvml.ERROR_DRIVER_NOT_LOADED }

func TestNVMLThatDidNotStartIsNotQueried(t *testing.T) {
	require.ErrorIs(t, startNVML(deadNVML{}), nvml.ERROR_DRIVER_NOT_LOADED)
}
