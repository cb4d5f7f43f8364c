//go:build gaudi && cgo && linux

package cli

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"octet/checkpoint"
	"octet/csrc/standin"
)

func newGaudi(t *testing.T) machine {
	kernels := filepath.Join(t.TempDir(), "libtpc_kernels.so")
	require.NoError(t, os.WriteFile(kernels, nil, 0o666))
	return newMachine(t).with("OCTET_LIBSYNAPSE="+standin.Build(t, "libsynapse"), "STANDIN_KERNELS=1", "GC_KERNEL_PATH="+kernels, "XDG_CACHE_HOME="+t.TempDir())
}

// An unsuitable machine gives one sentence before anything is started.
func TestErrorsOfUnfitGaudis(t *testing.T) {
	g := newGaudi(t)
	text, hlml := corpus(t, 8_000), standin.Build(t, "libhlml")
	const (
		emu    = ", or use --backend emu"
		listed = "hl-smi should list the devices, /dev/accel hold them: install habanalabs-dkms and load it; in a container, start it with --runtime=habana and HABANA_VISIBLE_DEVICES=all" + emu
		held   = "No device found; another process holds it, or it does not exist: hl-smi lists the devices and the processes that hold them" + emu
	)
	for _, c := range []struct {
		what, setting, device string
		want                  string
	}{
		{
			"no SynapseAI", "OCTET_LIBSYNAPSE=/missing.so", "gaudi",
			"backend gaudi: there is no device: SynapseAI does not answer: not found: /missing.so; " +
				"install Intel Gaudi's habanalabs-graph (it puts libSynapse.so into /usr/lib/habanalabs), or point OCTET_LIBSYNAPSE at the file" + emu,
		},
		{
			"another library", "OCTET_LIBSYNAPSE=" + hlml, "gaudi",
			"backend gaudi: there is no device: SynapseAI does not answer: " + hlml + " has no synInitialize; " +
				"install Intel Gaudi's habanalabs-graph (it puts libSynapse.so into /usr/lib/habanalabs), or point OCTET_LIBSYNAPSE at the file" + emu,
		},
		{
			"no driver", "STANDIN_SYNAPSE=26", "gaudi",
			"backend gaudi: there is no device: SynapseAI does not answer: synInitialize returned 26 (synFail); " + listed,
		},
		{
			"no device", "STANDIN_GAUDI2=0", "gaudi",
			"backend gaudi: there is no device: SynapseAI shows no Gaudi 2 or 3; " + listed,
		},
		{
			"an old driver", "STANDIN_DRIVER=1.14.0", "gaudi",
			"backend gaudi: there is no device that can be used: SynapseAI is version 1.14.0; " +
				"install version 1.16 or later of Intel Gaudi's software, driver and firmware included" + emu,
		},
		{
			"no path of the kernels", "GC_KERNEL_PATH=", "gaudi",
			"backend gaudi: there is no device that can be used: GC_KERNEL_PATH is not set, so SynapseAI finds no kernels: " +
				"export GC_KERNEL_PATH=/usr/lib/habanalabs/libtpc_kernels.so, or wherever habanalabs-graph installed that file" + emu,
		},
		{
			"no kernels", "GC_KERNEL_PATH=/missing.so", "gaudi",
			"backend gaudi: there is no device that can be used: GC_KERNEL_PATH: stat /missing.so: no such file or directory: " +
				"export GC_KERNEL_PATH=/usr/lib/habanalabs/libtpc_kernels.so, or wherever habanalabs-graph installed that file" + emu,
		},
		{
			"another model", "", "gaudi:gaudi3",
			"backend gaudi: no device of that model: this is a gaudi2; --backend gaudi uses any model",
		},
		{
			"no such module", "", "gaudi:3",
			"backend gaudi: no device available: acquire the Gaudi with module number 3: synDeviceAcquireByModuleId returned 8 (synNoDeviceFound): " + held,
		},
		{
			"no room", "STANDIN_OOM=100000", "gaudi",
			"gaudi: allocate the variables: out of memory: asked for 0.36 MiB, 0.10 MiB of the device's 0.10 MiB are free " +
				"(synDeviceMalloc returned 4 (synOutOfDeviceMemory): Out of Device memory (OOM)); training needs less with a smaller train.micro_batch or train.recompute=block",
		},
		{
			"a kernel that does not compile", "STANDIN_COMPILE_FAIL=rms_norm_ex_fwd_f32", "gaudi",
			"gaudi: compile: recipe layers.0.fwd: synGraphCompile returned 26 (synFail); " +
				"octet doctor --backend gaudi names the failing kernel, and SynapseAI's logs are in $HABANA_LOGS",
		},
	} {
		t.Run(c.what, func(t *testing.T) {
			g := g.with(c.setting)
			g.t = t
			unfit(t, g, c.want, text, "--backend", c.device)
		})
	}

	t.Run("fewer devices than ranks", func(t *testing.T) {
		host, err := os.Hostname()
		require.NoError(t, err)
		unfit(t, g, "rank 1 on "+host+": backend gaudi: unsupported: 2 or more ranks of this machine need a device each, and SynapseAI shows 1", text, "--backend", "gaudi", "train.ranks=2")
	})

	t.Run("held by another process", func(t *testing.T) {
		dir := filepath.Join(t.TempDir(), "run")
		other := g.command(trainArgs(text, dir, 100_000, "--backend", "gaudi")...)
		var log bytes.Buffer
		other.Stderr = &log
		require.NoError(t, other.Start())
		defer func() {
			require.NoError(t, other.Process.Signal(syscall.SIGKILL))
			require.ErrorContains(t, other.Wait(), "killed", "the run ended by itself: %s", &log)
		}()
		require.Eventually(t, func() bool {
			_, err := os.Stat(filepath.Join(dir, "metrics.jsonl")) // the first step writes it
			return err == nil
		}, time.Minute, 50*time.Millisecond)
		unfit(t, g, "backend gaudi: no device available: acquire a free Gaudi: synDeviceAcquireByDeviceType returned 8 (synNoDeviceFound): "+held, text, "--backend", "gaudi")

		status, out, stderr := g.octet("doctor", "--backend", "gaudi")
		require.Equal(t, exitInput, status, stderr)
		require.Contains(t, g.sentence(stderr), held)
		require.NotContains(t, out, "conformance of", "every case would wait for the device")
	})
}

// A device passes without its optional libraries.
func TestDoctorOfAGaudiWithoutSensors(t *testing.T) {
	status, out, stderr := newGaudi(t).with("OCTET_LIBHLML=/missing.so").octet("doctor", "--backend", "gaudi")
	require.Zero(t, status, "%s\n%s", out, stderr)
	require.Contains(t, out, "  - HLML: not found: /missing.so; ")
	require.Regexp(t, `conformance of gaudi: [1-9]\d+ passed, 0 failed`, out)
	_, detail, _ := strings.Cut(out, "in detail\n")
	require.NotContains(t, detail, "✗")
	require.Empty(t, stderr)
}

// After the device is lost, doctor skips the remaining cases and says so.
func TestDoctorOfAGaudiThatIsLost(t *testing.T) {
	status, out, stderr := newGaudi(t).with("STANDIN_LOST=20").octet("doctor", "--backend", "gaudi")
	require.Equal(t, exitFailed, status, stderr)
	require.Contains(t, out, "synSynapseTerminated): Synapse terminated; only a new process gets the device back, start again\n  the device is lost to this process")
	require.Regexp(t, `conformance of gaudi: [1-9]\d* passed, 1 failed`, out)
}

// unfit requires that a training cannot start, with one sentence and without a run folder.
func unfit(t *testing.T, m machine, want, text string, more ...string) {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "run")
	status, stdout, stderr := m.octet(trainArgs(text, dir, 2, append(more, "train.accumulate=1")...)...)
	require.Equal(t, exitInput, status, stderr)
	require.Empty(t, stdout)
	require.Equal(t, want, m.sentence(stderr))
	require.NoDirExists(t, dir)
}

// interrupted returns the arguments of a run that saves every step. The recipe must round to
// nearest to be repeatable: a Gaudi generates its own random bits.
func interrupted(recipe string, steps int, text, dir string, more ...string) []string {
	return trainArgs(text, dir, steps, append([]string{
		"--backend", "gaudi", "--json", "--recipe", recipe,
		"train.accumulate=1", "train.health_every=0", "train.eval_every=0", "data.val_bytes=0", "checkpoint.every=1",
	}, more...)...)
}

// A device that is lost in mid-run leaves the last checkpoint intact. A new process resumes
// from there bit for bit; another backend resumes too.
func TestGaudiLostInMidRun(t *testing.T) {
	g := newGaudi(t)
	text := corpus(t, 8_000)
	whole, dir := filepath.Join(t.TempDir(), "whole"), filepath.Join(t.TempDir(), "lost")
	g.succeed(interrupted("te-delayed", 5, text, whole)...)
	status, stdout, stderr := g.with("STANDIN_LOST=260").octet(interrupted("te-delayed", 5, text, dir)...)
	require.Equal(t, exitFailed, status, stderr)
	require.Empty(t, stdout)
	steps := intactCheckpoints(t, dir)
	require.NotEmpty(t, steps, stderr)
	require.Less(t, steps[0], 5)
	require.Equal(t, fmt.Sprintf("gaudi: copy from the device: device lost: synStreamSynchronize returned 31 (synSynapseTerminated): Synapse terminated; "+
		"only a new process gets the device back, start again; the last checkpoint is %s/checkpoints/step-%08d: resume the run with octet train --resume --out %[1]s", dir, steps[0]),
		g.sentence(stderr))

	never := filepath.Join(t.TempDir(), "never")
	status, _, stderr = g.with("STANDIN_LOST=1").octet(interrupted("te-delayed", 5, text, never)...)
	require.Equal(t, exitFailed, status, stderr)
	require.Regexp(t, `^gaudi: .*: device lost: synStreamSynchronize returned 31 \(synSynapseTerminated\): Synapse terminated; only a new process gets the device back, start again; there is no checkpoint yet$`, g.sentence(stderr))

	onEmu := copyOf(t, dir)
	require.NotContains(t, g.succeed("train", "--resume", "--out", dir, "--backend", "gaudi", "--json"), "was written by")
	sameRun(t, whole, dir)

	require.Contains(t, g.succeed("train", "--resume", "--out", onEmu, "--backend", "emu:gaudi2", "--json"), "the checkpoint was written by backend gaudi, gaudi2+synapse1.24.0-standin")
	require.Equal(t, 5, intactCheckpoints(t, onEmu)[0])
}

// allocated returns the number of bytes that a run allocated on the device.
func allocated(t *testing.T, dir string) (n int) {
	t.Helper()
	found := regexp.MustCompile(`"allocated":(\d+)`).FindStringSubmatch(read(t, dir, "run.log"))
	require.NotNil(t, found)
	n, err := strconv.Atoi(found[1])
	require.NoError(t, err)
	return n
}

// A later recipe of a schedule may lack memory or a kernel.
func TestGaudiFailsInMidRun(t *testing.T) {
	text := corpus(t, 8_000)
	first, second := filepath.Join(t.TempDir(), "first"), filepath.Join(t.TempDir(), "second")
	g := newGaudi(t)
	g.succeed(interrupted("bf16", 5, text, first)...)
	g.succeed(interrupted("te-delayed", 5, text, second)...)
	require.Greater(t, allocated(t, second), allocated(t, first)+1000)
	for _, c := range []struct{ what, setting, want string }{
		{
			"a kernel", "STANDIN_COMPILE_FAIL=fp8_gemm_bf16",
			`^gaudi: compile: recipe layers\.0\.fwd: synGraphCompile returned 26 \(synFail\); octet doctor --backend gaudi names .*`,
		},
		{
			"memory", fmt.Sprint("STANDIN_OOM=", allocated(t, second)), // and none beyond the programs
			`^gaudi: allocate .*: out of memory: asked for .* are free \(synDeviceMalloc returned 4 \(synOutOfDeviceMemory\): .*\); training needs less .*`,
		},
	} {
		t.Run(c.what, func(t *testing.T) {
			g := g.with("XDG_CACHE_HOME=" + t.TempDir())
			dir := filepath.Join(t.TempDir(), "run")
			status, _, stderr := g.with(c.setting).octet(interrupted("bf16", 5, text, dir, `precision.schedule=[{step=2, recipe="te-delayed"}]`)...)
			require.Equal(t, exitFailed, status, stderr)
			require.Regexp(t, c.want+`; the last checkpoint is .*/checkpoints/step-00000002: resume the run with octet train --resume --out .*$`, g.sentence(stderr))
			require.Equal(t, 2, intactCheckpoints(t, dir)[0])
			g.succeed("train", "--resume", "--out", dir, "--backend", "gaudi", "--json")
			require.Equal(t, 5, intactCheckpoints(t, dir)[0])
		})
	}
}

// ranks starts a run of two ranks, each in its own process, and returns their process ids after
// the first checkpoint.
func (m machine) ranks(text, dir string) (command *exec.Cmd, stderr *bytes.Buffer, processes [2]int) {
	m.t.Helper()
	command, stderr = m.command(interrupted("te-delayed", 1000, text, dir, "train.ranks=2")...), new(bytes.Buffer)
	command.Stderr = stderr
	require.NoError(m.t, command.Start())
	require.Eventually(m.t, func() bool {
		list, _ := checkpoint.List(filepath.Join(dir, "checkpoints"))
		return len(list) > 0
	}, time.Minute, 20*time.Millisecond, "%s", stderr)
	copy(processes[:], ranksOf(m.t, command.Process.Pid))
	require.NotContains(m.t, processes, 0)
	return command, stderr, processes
}

// ended waits until a process has ended.
func ended(t *testing.T, pid int) {
	t.Helper()
	require.Eventually(t, func() bool { return errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) }, time.Minute, 20*time.Millisecond)
}

// A rank that dies ends the run, which resumes from its last checkpoint. A run that is killed
// leaves no process behind.
func TestGaudiRankDiesInMidRun(t *testing.T) {
	g, text, dir := newGaudi(t).with("STANDIN_GAUDI2=2"), corpus(t, 8_000), filepath.Join(t.TempDir(), "run")
	run, stderr, processes := g.ranks(text, dir)
	require.NoError(t, syscall.Kill(processes[1], syscall.SIGKILL))
	require.Error(t, run.Wait())
	require.Equal(t, exitFailed, run.ProcessState.ExitCode())
	require.Regexp(t, `rank 1 on [^:]*: its connection closed: the process ended, or the network failed; the last checkpoint is .*/step-\d+: resume the run with octet train --resume --out .*$`, g.sentence(stderr.String()))
	ended(t, processes[0])

	next := intactCheckpoints(t, dir)[0] + 2
	g.succeed("train", "--resume", "--out", dir, "--backend", "gaudi", "--steps", fmt.Sprint(next)) // with a sample, on one device
	require.Equal(t, next, intactCheckpoints(t, dir)[0])

	killed, _, processes := g.ranks(text, filepath.Join(t.TempDir(), "killed"))
	require.NoError(t, killed.Process.Kill())
	require.Error(t, killed.Wait())
	for _, pid := range processes {
		ended(t, pid)
	}
}

func TestFaultsOfRanksOnGaudis(t *testing.T) {
	faultsOfRanks(t, newGaudi(t).with("STANDIN_GAUDI2=2"), "gaudi")
}
