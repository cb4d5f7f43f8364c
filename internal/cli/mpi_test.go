//go:build mpi && cgo && linux

package cli

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"octet/checkpoint"
	"octet/csrc/standin"
)

// mpiRun is the processes of a run over the stand-in for MPI, or, if OCTET_TEST_MPIEXEC names a
// launcher, the process of the launcher.
type mpiRun struct {
	t       *testing.T
	id      string // a setting of the environment
	ranks   []*exec.Cmd
	outputs []*syncBuffer
	status  []int
}

// startMPI starts a rank of a command line in each process. own returns more arguments of a rank.
func startMPI(t *testing.T, ranks int, own func(rank int) []string, args ...string) *mpiRun {
	t.Helper()
	file := filepath.Join(t.TempDir(), "mpi")
	m := &mpiRun{t: t, id: "OCTET_TEST_RUN=" + file}
	start := func(environment []string, command ...string) {
		c := exec.Command(command[0], command[1:]...)
		c.Env = append(append(os.Environ(), asCommand+"=1", m.id), environment...)
		out := new(syncBuffer)
		c.Stdout, c.Stderr = out, out
		require.NoError(t, c.Start())
		m.ranks, m.outputs, m.status = append(m.ranks, c), append(m.outputs, out), append(m.status, 0)
	}
	var launch []string
	for rank := range ranks {
		command := slices.Concat([]string{os.Args[0]}, args, own(rank))
		if standin.RealMPI() {
			launch = append(append(launch, ":", "-n", "1"), command...)
		} else {
			start(standin.MPIRank(t, file, rank, ranks), command...)
		}
	}
	if launch != nil {
		start(nil, append(standin.Launcher(), launch[1:]...)...)
	}
	t.Cleanup(func() {
		for _, c := range m.ranks {
			_ = c.Process.Kill()
		}
	})
	return m
}

// signal sends a signal to a rank.
func (m *mpiRun) signal(rank int, s syscall.Signal) {
	if !standin.RealMPI() {
		_ = m.ranks[rank].Process.Signal(s)
		return
	}
	files, err := filepath.Glob("/proc/[0-9]*/environ")
	require.NoError(m.t, err)
	for _, name := range files {
		text, _ := os.ReadFile(name)
		list := strings.Split(string(text), "\x00")
		if slices.Contains(list, m.id) && slices.Contains(list, fmt.Sprint("PMI_RANK=", rank)) {
			pid, err := strconv.Atoi(strings.Split(name, "/")[2])
			require.NoError(m.t, err)
			_ = syscall.Kill(pid, s)
		}
	}
}

func same(int) []string { return nil }

// wait waits for all processes; those that are stopped are killed after the others have ended.
func (m *mpiRun) wait(stopped int) (took time.Duration) {
	m.t.Helper()
	var all sync.WaitGroup
	begin := time.Now()
	for rank, c := range m.ranks {
		if rank == stopped {
			continue
		}
		all.Go(func() {
			_ = c.Wait()
			m.status[rank] = c.ProcessState.ExitCode()
		})
	}
	all.Wait()
	took = time.Since(begin)
	if stopped >= 0 {
		_ = m.ranks[stopped].Process.Kill()
		_ = m.ranks[stopped].Wait()
	}
	return took
}

// errors returns the error lines of all ranks.
func (m *mpiRun) errors() (list []string) {
	for _, out := range m.outputs {
		for line := range strings.Lines(out.String()) {
			text, ok := strings.CutPrefix(line, "octet: ")
			if ok && !strings.HasPrefix(text, "training on ") && !strings.HasPrefix(text, "rank 0 of ") && !strings.HasPrefix(text, "stopping") && !strings.HasPrefix(text, "stopped after ") {
				list = append(list, strings.TrimSpace(text))
			}
		}
	}
	return list
}

func (m *mpiRun) String() string {
	var b bytes.Buffer
	for rank, out := range m.outputs {
		fmt.Fprintf(&b, "rank %d, status %d:\n%s\n", rank, m.status[rank], out)
	}
	return b.String()
}

// mpiArgs returns the arguments of a run of four ranks.
func mpiArgs(text, dir string, steps int, recipe string, stage int, more ...string) []string {
	more = append([]string{
		"--backend", "emu", "--recipe", recipe, "--ranks", "4", fmt.Sprint("train.zero_stage=", stage),
		"train.accumulate=1", "checkpoint.every=2", "train.eval_every=3",
	}, more...)
	return trainArgs(text, dir, steps, more...)
}

// Four processes over MPI leave the files of four ranks in one process, bit for bit.
func TestProcessesOverMPI(t *testing.T) {
	text := corpus(t, 12_000)
	for _, recipe := range []string{"bf16", "fp8-delayed", "fp8-smooth"} {
		for _, mode := range []struct {
			stage int
			more  []string
		}{{0, nil}, {1, nil}, {1, []string{"precision.reduce=e4m3"}}} {
			t.Run(fmt.Sprintf("%s, stage %d %s", recipe, mode.stage, strings.Join(mode.more, " ")), func(t *testing.T) {
				want, got := filepath.Join(t.TempDir(), "run"), filepath.Join(t.TempDir(), "run")
				succeed(t, mpiArgs(text, want, 6, recipe, mode.stage, mode.more...)...)
				m := startMPI(t, 4, same, mpiArgs(text, got, 6, recipe, mode.stage, mode.more...)...)
				m.wait(-1)
				require.Equal(t, make([]int, len(m.ranks)), m.status, "%v", m)
				require.Empty(t, m.errors())
				sameRun(t, want, got)
				require.FileExists(t, filepath.Join(got, "logs", "rank-00003.log"))
			})
		}
	}
}

// A fault of one of four processes ends all of them within its deadline, with one sentence that
// names the rank. The last checkpoint is whole, and the run resumes from it with the same bits.
// With OCTET_LONG there are 500 faults.
func TestFaultsOfProcesses(t *testing.T) {
	text := corpus(t, 12_000)
	want := filepath.Join(t.TempDir(), "run")
	const steps = 40
	args := func(dir string) []string { return mpiArgs(text, dir, steps, "bf16", 1) }
	succeed(t, args(want)...)
	kinds := []syscall.Signal{syscall.SIGKILL, syscall.SIGKILL, syscall.SIGTERM, syscall.SIGSTOP}
	faults := kinds
	if os.Getenv("OCTET_LONG") != "" {
		for len(faults) < 500 {
			kind := syscall.SIGKILL
			switch len(faults) % 20 {
			case 0:
				kind = syscall.SIGSTOP
			case 1, 2, 3, 4:
				kind = syscall.SIGTERM
			}
			faults = append(faults, kind)
		}
	}
	for i, fault := range faults {
		t.Run(fmt.Sprint(i, strings.ReplaceAll(fault.String(), " ", "")), func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "run")
			m := startMPI(t, 4, same, args(dir)...)
			require.Eventually(t, func() bool {
				list, _ := checkpoint.List(filepath.Join(dir, "checkpoints"))
				return len(list) > 0
			}, time.Minute, 5*time.Millisecond, "%v", m)
			time.Sleep(time.Duration(rand.IntN(200)) * time.Millisecond)
			victim, stopped := rand.IntN(4), -1
			m.signal(victim, fault)
			if fault == syscall.SIGSTOP && !standin.RealMPI() {
				stopped = victim
			}
			took := m.wait(stopped)
			if m.status[(victim+1)%len(m.ranks)] != 0 { // the run was not done before
				m.requireFault(t, fault, victim, took)
				require.NotEmpty(t, intactCheckpoints(t, dir))
				succeed(t, "train", "--resume", "--out", dir, "--backend", "emu")
			}
			sameRun(t, want, dir)
		})
	}
}

// requireFault requires that all ranks ended because of a fault of one of them.
func (m *mpiRun) requireFault(t *testing.T, fault syscall.Signal, victim int, took time.Duration) {
	t.Helper()
	deadline := map[syscall.Signal]time.Duration{syscall.SIGKILL: 5 * time.Second, syscall.SIGSTOP: 15 * time.Second, syscall.SIGTERM: 25 * time.Second}[fault]
	require.Less(t, took, deadline, "%v", m)
	status := exitFailed
	if fault == syscall.SIGTERM {
		status = 128 + int(syscall.SIGTERM)
	}
	if standin.RealMPI() && fault != syscall.SIGTERM {
		status = int(syscall.SIGKILL) // mpiexec kills all
	}
	for rank := range m.status {
		if rank != victim || fault == syscall.SIGTERM || standin.RealMPI() {
			require.Equal(t, status, m.status[rank], "%v", m)
		}
	}
	if standin.RealMPI() && fault == syscall.SIGKILL {
		return // mpiexec may kill the rank that would report
	}
	list := m.errors()
	if fault == syscall.SIGTERM {
		require.Empty(t, list, "%v", m)
		return
	}
	require.Len(t, list, 1, "%v", m)
	require.Contains(t, list[0], fmt.Sprintf("rank %d", victim), "%v", m)
	require.Contains(t, list[0], map[syscall.Signal]string{syscall.SIGKILL: "its connection closed", syscall.SIGSTOP: "no sign of life for 10s"}[fault], "%v", m)
}

// Processes whose configurations differ end with status 2 and one sentence that says where.
func TestProcessesThatDiffer(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "run")
	m := startMPI(t, 4, func(rank int) []string { return []string{fmt.Sprint("seed=", 1+rank/3)} }, mpiArgs(corpus(t, 12_000), dir, 4, "bf16", 0)...)
	require.Less(t, m.wait(-1), 10*time.Second)
	require.Equal(t, slices.Repeat([]int{2}, len(m.ranks)), m.status, "%v", m)
	require.Len(t, m.errors(), 1, "%v", m)
	require.Contains(t, m.errors()[0], "rank 3 on ")
	require.Contains(t, m.errors()[0], "its seed differs: 2, rank 0 on ")
	require.NoDirExists(t, dir)
}
