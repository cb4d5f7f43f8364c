//go:build cuda && cgo && linux

package cli

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/backend/world"
	"octet/csrc/standin"
)

func newGPU(t *testing.T) machine {
	m := newMachine(t)
	for variable, name := range map[string]string{
		"OCTET_LIBCUDA": "libcuda", "OCTET_LIBCUBLASLT": "libcublaslt", "OCTET_LIBNVRTC": "libnvrtc",
	} {
		m = m.with(variable + "=" + standin.Build(t, name))
	}
	return m
}

// elsewhere returns a machine with the cached kernels, but without cached algorithms.
func (m machine) elsewhere() machine {
	here, err := os.UserCacheDir()
	require.NoError(m.t, err)
	dir := m.t.TempDir()
	require.NoError(m.t, os.MkdirAll(filepath.Join(dir, "octet"), 0o777))
	require.NoError(m.t, os.MkdirAll(filepath.Join(here, "octet", "cubin"), 0o777))
	require.NoError(m.t, os.Symlink(filepath.Join(here, "octet", "cubin"), filepath.Join(dir, "octet", "cubin")))
	return m.with("XDG_CACHE_HOME=" + dir)
}

// libraryPath matches the path of a stand-in.
var libraryPath = regexp.MustCompile(`/\S+/libnvrtc\.so`)

// An unsuitable machine gives one sentence before anything is started.
func TestErrorsOfUnfitMachines(t *testing.T) {
	g := newGPU(t)
	text := corpus(t, 8_000)
	const emu = ", or use --backend emu"
	for _, c := range []struct{ what, setting, want string }{
		{
			"no driver", "OCTET_LIBCUDA=/missing.so",
			"backend cuda: no device: the CUDA driver does not start: not found: /missing.so; " +
				"install the NVIDIA driver, 525 or later (580 for CUDA 13), on the host; start a container with GPUs (docker run --gpus all); or set OCTET_LIBCUDA to libcuda.so.1",
		},
		{
			"no GPU", "STANDIN_GPUS=0",
			"backend cuda: no device: the CUDA driver does not start: cuInit returned 100: no CUDA-capable device is detected; " +
				"the driver shows no GPU to this process: check nvidia-smi and CUDA_VISIBLE_DEVICES; start a container with GPUs",
		},
		{
			"a toolkit's stub", "STANDIN_STUB=1",
			"backend cuda: no device: the CUDA driver does not start: cuInit returned 34: CUDA driver is a stub library; " +
				"this libcuda.so.1 is a toolkit's stub for linking: remove its folder, stubs, from LD_LIBRARY_PATH, so that the driver's library is found",
		},
		{
			"an old driver", "STANDIN_CUDA=11080",
			"backend cuda: no device that can be used: the driver supports CUDA 11.8, 12 or 13 is needed; " +
				"install the NVIDIA driver, 525 or later (580 for CUDA 13)",
		},
		{
			"an old GPU", "STANDIN_CAPABILITY=80",
			"backend cuda: no device that can be used: GPU 0: Stand-in 0, compute capability 8.0, 80.0 GiB: no FP8 matrix units; " +
				"FP8 needs compute capability 8.9 or later (Ada, Hopper, Blackwell)",
		},
		{
			"no cuBLASLt", "OCTET_LIBCUBLASLT=/missing.so",
			"backend cuda: no device that can be used: cuBLASLt: not found: /missing.so; " +
				"install NVIDIA's package libcublas of the CUDA version that the driver supports, or set CUDA_HOME to a toolkit, or OCTET_LIBCUBLASLT to the file",
		},
		{
			"no NVRTC", "OCTET_LIBNVRTC=/missing.so",
			"backend cuda: no device that can be used: NVRTC: not found: /missing.so; " +
				"install NVIDIA's package cuda-nvrtc of the CUDA version that the driver supports, or set CUDA_HOME to a toolkit, or OCTET_LIBNVRTC to the file",
		},
		{
			"an NVRTC older than the GPU", "STANDIN_NVRTC=89",
			"backend cuda: no device that can be used: NVRTC: 13.99 in LIBNVRTC does not support compute capability 9.0; " +
				"install NVIDIA's newest package cuda-nvrtc that the driver supports, or set OCTET_LIBNVRTC to its file",
		},
		{
			"no room", "STANDIN_OOM=100000",
			"cuda: allocate the variables: out of memory: asked for 0.35 MiB, 0.10 MiB of the device's 80 GiB are free " +
				"(cuMemAlloc_v2 returned 2: out of memory); training needs less with a smaller train.micro_batch or train.recompute=block",
		},
	} {
		t.Run(c.what, func(t *testing.T) {
			if !strings.HasPrefix(c.want, "cuda: ") {
				c.want += emu
			}
			g := g.with(c.setting)
			g.t = t
			dir := filepath.Join(t.TempDir(), "run")
			status, stdout, stderr := g.octet(trainArgs(text, dir, 2, "--backend", "cuda", "train.accumulate=1")...)
			require.Equal(t, exitInput, status)
			require.Empty(t, stdout)
			require.Equal(t, c.want, libraryPath.ReplaceAllString(g.sentence(stderr), "LIBNVRTC"))
			require.NoDirExists(t, dir)
		})
	}
}

// A device that is lost in mid-run leaves the last checkpoint intact. A machine that would
// choose other algorithms resumes from there bit for bit, or says that it cannot.
func TestDeviceLostInMidRun(t *testing.T) {
	g := newGPU(t).elsewhere()
	text := corpus(t, 8_000)
	whole, dir := filepath.Join(t.TempDir(), "whole"), filepath.Join(t.TempDir(), "lost")
	args := func(dir string) []string {
		return trainArgs(text, dir, 5, "--backend", "cuda", "--json", "train.accumulate=1", "train.health_every=0", "train.eval_every=0", "data.val_bytes=0", "checkpoint.every=1")
	}
	g.succeed(args(whole)...)
	remembered, err := os.ReadFile(filepath.Join(whole, "choices.json"))
	require.NoError(t, err)

	status, stdout, stderr := g.with("STANDIN_LOST=450").octet(args(dir)...)
	require.Equal(t, exitFailed, status, stderr)
	require.Empty(t, stdout)
	steps := intactCheckpoints(t, dir)
	require.NotEmpty(t, steps)
	require.Less(t, steps[0], 5)
	require.Equal(t, fmt.Sprintf("cuda: copy from the device: device lost: cuEventSynchronize returned 700: an illegal memory access was encountered; "+
		"only a new process gets the GPU back, start again; the last checkpoint is %s/checkpoints/step-%08d: resume the run with octet train --resume --out %[1]s", dir, steps[0]),
		g.sentence(stderr))

	resume := func(g machine, dir, backend string) (stderr string) {
		return g.succeed("train", "--resume", "--out", dir, "--backend", backend, "--json")
	}
	onEmu, otherwise := copyOf(t, dir), copyOf(t, dir)

	// The stand-in's algorithms 1 and 3 add up in opposite orders.
	var choices struct {
		Library  string            `json:"cublaslt"`
		Products map[string]string `json:"products"`
	}
	require.NoError(t, json.Unmarshal(remembered, &choices))
	for kind, code := range choices.Products {
		choices.Products[kind] = map[string]string{"01": "03", "03": "01"}[code[:2]] + code[2:]
	}
	swapped, err := json.Marshal(choices)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(otherwise, "choices.json"), swapped, 0o600))

	stderr = resume(newGPU(t).elsewhere(), dir, "cuda")
	require.NotContains(t, stderr, "was written by")
	sameRun(t, whole, dir)
	require.Equal(t, string(remembered), read(t, dir, "choices.json"))

	const moved = "the checkpoint was written by backend cuda, sm_90a+cublaslt13.1.2+nvrtc13.99+algorithms-"
	stderr = resume(g, otherwise, "cuda")
	require.Contains(t, stderr, moved)
	require.NotEqual(t, read(t, whole, "checkpoints", "step-00000005", "model.safetensors"), read(t, otherwise, "checkpoints", "step-00000005", "model.safetensors"))
	require.Contains(t, resume(g, onEmu, "emu"), moved)
	require.Equal(t, 5, intactCheckpoints(t, onEmu)[0])
}

// need returns the memory that plan prints for a recipe.
func (m machine) need(recipe string) (bytes int64) {
	_, stdout, stderr := m.octet(append([]string{"plan", "--backend", "cuda", "--json", "--recipe", recipe, "train.accumulate=1", "train.health_every=0"}, small...)...)
	var p struct {
		MemoryBytes int64 `json:"memory_bytes"`
	}
	require.NoError(m.t, json.Unmarshal([]byte(stdout), &p), stderr)
	return p.MemoryBytes
}

// A run, including its sample, needs exactly the memory that plan prints.
func TestMemoryIsEnough(t *testing.T) {
	g := newGPU(t)
	text, bytes := corpus(t, 8_000), g.need("bf16")
	args := func(dir string) []string {
		return trainArgs(text, filepath.Join(t.TempDir(), dir), 1, "--backend", "cuda", "--recipe", "bf16", "train.accumulate=1", "train.health_every=0")
	}
	g.with(fmt.Sprintf("STANDIN_OOM=%d", bytes)).succeed(args("enough")...)
	status, _, stderr := g.with(fmt.Sprintf("STANDIN_OOM=%d", bytes-1)).octet(args("less")...)
	require.Equal(t, exitInput, status)
	require.Contains(t, g.sentence(stderr), "out of memory")
}

// Memory runs out in mid-run, when a schedule changes to a larger recipe.
func TestOutOfMemoryInMidRun(t *testing.T) {
	g := newGPU(t)
	text, dir := corpus(t, 8_000), filepath.Join(t.TempDir(), "run")
	first, second := g.need("fp8-delayed"), g.need("bf16")
	require.Greater(t, second, first)
	args := trainArgs(text, dir, 4, "--backend", "cuda", "--json", "--recipe", "fp8-delayed", `precision.schedule=[{step=2, recipe="bf16"}]`,
		"train.accumulate=1", "train.health_every=0", "train.eval_every=0", "data.val_bytes=0", "checkpoint.every=1")
	status, _, stderr := g.with(fmt.Sprintf("STANDIN_OOM=%d", second-1)).octet(args...)
	require.Equal(t, exitFailed, status, stderr)
	require.Regexp(t, `^cuda: allocate temps \(0\.\d+ MiB\), workspace and tables: out of memory: asked for 32\.\d+ MiB, 32\.\d+ MiB of the device's 80 GiB are free `+
		`\(cuMemAlloc_v2 returned 2: out of memory\); training needs less with a smaller train\.micro_batch or train\.recompute=block; `+
		`the last checkpoint is .*/checkpoints/step-00000002: resume the run with octet train --resume --out .*$`, g.sentence(stderr))
	require.Equal(t, 2, intactCheckpoints(t, dir)[0])
	g.succeed("train", "--resume", "--out", dir, "--backend", "cuda", "--json")
	require.Equal(t, 4, intactCheckpoints(t, dir)[0])
}

// The driver of rank 1 hangs while it holds a lock that all its other calls need. After the
// timeout of the ranks both processes end: the error, also in run.log, names rank, op and
// variable, and the last checkpoint is intact.
func TestDriverThatHangsEndsTheProcess(t *testing.T) {
	g := newGPU(t).with("OCTET_LIBNCCL="+standin.Build(t, "libnccl"), "STANDIN_GPUS=2", "OCTET_TIMEOUT=10s")
	text, dir := corpus(t, 8_000), filepath.Join(t.TempDir(), "run")
	args := trainArgs(text, dir, 5, "--backend", "cuda", "--json", "--recipe", "bf16", "--ranks", "2", "train.accumulate=2", "train.health_every=0",
		"train.eval_every=0", "data.val_bytes=0", "checkpoint.every=1")
	address, listener, err := world.Loopback()
	require.NoError(t, err)
	require.NoError(t, listener.Close())
	var ranks [2]*exec.Cmd
	var outputs [2]syncBuffer
	for rank := range ranks {
		one := g.with(world.Environment(rank, 2, address)...)
		if rank == 1 {
			one = one.with("STANDIN_HANG=250")
		}
		ranks[rank] = one.command(args...)
		ranks[rank].Stderr = &outputs[rank]
		require.NoError(t, ranks[rank].Start())
		defer ranks[rank].Process.Kill()
	}
	for rank, c := range ranks {
		_ = c.Wait()
		require.Equal(t, exitFailed, c.ProcessState.ExitCode(), "rank %d: %v", rank, &outputs[rank])
	}
	const sentence = `rank 1 on [^\n]+: the other ranks waited for it for 10s; its last collective is [^\n]+\(OCTET_TIMEOUT gives more time\)`
	require.Regexp(t, sentence, outputs[0].String())
	require.Regexp(t, `"level":"ERROR","msg":"stopped",[^\n]*"error":"[^\n]*`+sentence, read(t, dir, "run.log"))
	steps := intactCheckpoints(t, dir)
	require.NotEmpty(t, steps)
	require.Less(t, steps[0], 5)
	g.succeed("train", "--resume", "--out", dir, "--backend", "cuda", "--json")
	require.Equal(t, 5, intactCheckpoints(t, dir)[0])
}

func TestFaultsOfRanksOnGPUs(t *testing.T) {
	faultsOfRanks(t, newGPU(t).with("OCTET_LIBNCCL="+standin.Build(t, "libnccl"), "STANDIN_GPUS=2"), "cuda")
}
