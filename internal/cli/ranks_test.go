//go:build unix

package cli

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"octet/backend/world"
	"octet/checkpoint"
	"octet/internal/config"
)

// rankCommand returns a command for one rank of n, at an address.
func rankCommand(rank, n int, address string, args ...string) *exec.Cmd {
	cmd := exec.Command(os.Args[0], args...)
	cmd.Env = append(os.Environ(), asCommand+"=1", fmt.Sprint("OCTET_RANK=", rank), fmt.Sprint("OCTET_RANKS=", n), fmt.Sprint("OCTET_LOCAL_RANK=", rank), "OCTET_RENDEZVOUS="+address)
	return cmd
}

// freeAddress returns an address of this machine at which nothing listens.
func freeAddress(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	require.NoError(t, l.Close())
	return l.Addr().String()
}

// ranksEnd are the outputs and the statuses of ranks.
type ranksEnd struct {
	out, err []string
	status   []int
}

// arguments returns an edit for runRanks that gives each rank its arguments.
func arguments(of func(rank int) []string) func(int, *exec.Cmd) {
	return func(rank int, c *exec.Cmd) { c.Args = append(c.Args, of(rank)...) }
}

// runRanks runs ranks at one address; edit adds to the command of a rank.
func runRanks(t *testing.T, n int, edit func(rank int, c *exec.Cmd)) (e ranksEnd) {
	t.Helper()
	return runRanksOf(t, n, n, edit)
}

// runRanksOf runs the first ranks of n.
func runRanksOf(t *testing.T, n, ranks int, edit func(rank int, c *exec.Cmd)) (e ranksEnd) {
	t.Helper()
	address := freeAddress(t)
	outs, errs, commands := make([]bytes.Buffer, ranks), make([]bytes.Buffer, ranks), make([]*exec.Cmd, ranks)
	for rank := range ranks {
		c := rankCommand(rank, n, address)
		edit(rank, c)
		c.Stdout, c.Stderr = &outs[rank], &errs[rank]
		require.NoError(t, c.Start())
		commands[rank] = c
	}
	for rank, c := range commands {
		_ = c.Wait() // the status says it
		e.out, e.err, e.status = append(e.out, outs[rank].String()), append(e.err, errs[rank].String()), append(e.status, c.ProcessState.ExitCode())
	}
	return e
}

// Two processes of a launcher train what two ranks in one process do, and what two processes
// of --ranks do. Rank 0 alone prints, and says what its place is.
func TestRanksOfALauncher(t *testing.T) {
	text, dir := corpus(t, 20_000), t.TempDir()
	args := func(name string, more ...string) []string {
		return trainArgs(text, filepath.Join(dir, name), 4, append(more, "train.eval_every=2", "checkpoint.every=2")...)
	}
	succeed(t, args("goroutines", "--backend", "emu", "--ranks", "2")...)
	e := runRanks(t, 2, arguments(func(int) []string { return args("launched", "--backend", processes) }))
	require.Equal(t, []int{0, 0}, e.status, e.err)
	require.Regexp(t, `^octet: rank 0 of 2, local rank 0, by OCTET_RANK, rendezvous 127.0.0.1:\d+\noctet: training on emu-processes \(by --backend\)`, e.err[0])
	require.Contains(t, e.out[0], "\ncheckpoint  ")
	require.Equal(t, [2]string{}, [2]string{e.out[1], e.err[1]})

	_, stderr := succeed(t, args("supervised", "--backend", processes, "--ranks", "2")...)
	require.Regexp(t, `^octet: training on emu-processes`, stderr)
	require.NotContains(t, stderr, "[1]")
	want := read(t, dir, "goroutines", "metrics.jsonl")
	require.Equal(t, want, read(t, dir, "launched", "metrics.jsonl"))
	require.Equal(t, want, read(t, dir, "supervised", "metrics.jsonl"))
	require.FileExists(t, filepath.Join(dir, "supervised", "logs", "rank-00001.log"))
	require.Contains(t, read(t, dir, "launched", "config.toml"), "\nranks = 2")
}

// The ranks of a run without --out use the folder that rank 0 names, which no other run has.
func TestRanksAgreeOnTheFolder(t *testing.T) {
	text, dir, start := corpus(t, 20_000), t.TempDir(), time.Now()
	for second := range 30 {
		name := start.Add(time.Duration(second)*time.Second).Format("2006-01-02-150405") + "-fp8-smooth"
		require.NoError(t, os.MkdirAll(filepath.Join(dir, "runs", name), 0o700))
	}
	e := runRanks(t, 2, func(rank int, c *exec.Cmd) {
		c.Args = append(c.Args, slices.Delete(trainArgs(text, "x", 1, "--backend", processes), 3, 5)...)
		if c.Dir = dir; rank == 1 {
			c.Dir = t.TempDir()
		}
	})
	require.Equal(t, []int{0, 0}, e.status, e.err)
	found, err := filepath.Glob(filepath.Join(dir, "runs", "*-fp8-smooth-2", "logs", "rank-00001.log"))
	require.NoError(t, err)
	require.Len(t, found, 1)
}

// The exit status is the same on all ranks, and one rank prints the reason.
func TestRanksRefuse(t *testing.T) {
	text := corpus(t, 20_000)
	args := func(t *testing.T, more ...string) []string {
		return trainArgs(text, filepath.Join(t.TempDir(), "run"), 4, append(more, "--backend", processes)...)
	}
	for name, test := range map[string]struct {
		want   string
		argsOf func(t *testing.T, rank int) []string
	}{
		"configuration": {`octet: rank 1 on \S+: its optimizer.lr differs: 0.001, rank 0 on \S+ has 0.002\n$`, func(t *testing.T, rank int) []string {
			if rank == 1 {
				return args(t, "optimizer.lr=0.001")
			}
			return args(t)
		}},
		"resume": {`octet: rank 1 on \S+: its --resume differs: `, func(t *testing.T, rank int) []string {
			if rank == 1 {
				dir := t.TempDir()
				require.NoError(t, os.WriteFile(filepath.Join(dir, config.RunFile), []byte("seed = 1\n"), 0o600))
				return []string{"train", "--resume", "--out", dir, "--backend", processes}
			}
			return args(t)
		}},
		"device": {`octet: rank 1 on \S+: device 1: no device\n$`, func(t *testing.T, _ int) []string {
			return trainArgs(text, filepath.Join(t.TempDir(), "run"), 4, "--backend", processes+":absent")
		}},
	} {
		t.Run(name, func(t *testing.T) {
			e := runRanks(t, 3, arguments(func(rank int) []string { return test.argsOf(t, rank) }))
			require.Equal(t, []int{2, 2, 2}, e.status, e.err)
			require.Regexp(t, test.want, e.err[0])
			require.Equal(t, []string{"", ""}, e.err[1:])
		})
	}
}

// Wrong settings of the ranks are found before a rank waits for another.
func TestRanksContradictions(t *testing.T) {
	text := corpus(t, 20_000)
	file := filepath.Join(t.TempDir(), "my.toml")
	require.NoError(t, os.WriteFile(file, []byte("[train]\nranks = 4\n"), 0o600))
	torchrun := []string{"RANK=1", "WORLD_SIZE=8", "LOCAL_RANK=1", "MASTER_ADDR=127.0.0.1", "MASTER_PORT=1"}
	for _, test := range []struct {
		environment []string
		args        []string
		want        string
	}{
		{torchrun, []string{"--ranks", "4"}, "octet: rank 1: train.ranks is 4 on the command line, but torchrun started 8 ranks: omit train.ranks, or start as many\n"},
		{torchrun, []string{file}, "octet: rank 1: train.ranks is 4 in " + file + ", but torchrun started 8 ranks: omit train.ranks, or start as many\n"},
		{torchrun, []string{file, "--resume=auto", "--out", t.TempDir()}, "octet: rank 1: train.ranks is 4 in " + file + ", but torchrun started 8 ranks: omit train.ranks, or start as many\n"},
		{torchrun[:1], nil, "octet: the environment of torchrun: RANK is set, but WORLD_SIZE is not: set both, or neither\n"},
		{torchrun, []string{"--rendezvous", "node"}, `octet: --rendezvous: the rendezvous "node" is not an address: expected HOST:PORT, such as node1:29500` + "\n"},
		{nil, []string{"--rendezvous", "node1:29500"}, "octet: --rendezvous is given, but the environment has no rank: start the ranks by torchrun, srun or mpiexec, or set OCTET_RANK and OCTET_RANKS\n"},
		{torchrun, []string{"--rendezvous", "node1:29500"}, "octet: the rendezvous node1:29500 is reachable from other machines, so it needs a secret: set OCTET_SECRET_FILE to a file with 16 or more bytes, the same on all machines\n"},
		{[]string{"PMI_RANK=0", "PMI_SIZE=2"}, nil, "octet: MPI (PMI) tells no address of rank 0 (give --rendezvous HOST:PORT), and MPI cannot: "},
		{nil, []string{"--ranks", "0"}, "train.ranks"},
		{nil, []string{"--ranks", "1025"}, "octet: train.ranks = 1025 is more than a run can have; use 1024, or predict"},
	} {
		cmd := exec.Command(os.Args[0], append([]string{"train", "--data", text, "--backend", processes}, test.args...)...)
		cmd.Env = append(append(os.Environ(), asCommand+"=1"), test.environment...)
		cmd.Dir = t.TempDir()
		said, err := cmd.CombinedOutput()
		var exit *exec.ExitError
		require.ErrorAs(t, err, &exit, "%s", said)
		require.Equal(t, exitInput, exit.ExitCode(), "%s", said)
		require.Contains(t, string(said), test.want)
		require.Empty(t, names(t, cmd.Dir))
	}
}

// A launcher's size is that of a run which is resumed, too.
func TestRanksOfAResumedRun(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, config.RunFile), []byte("[train]\nranks = 2\n"), 0o600))
	eight := world.Place{Size: 8, Launcher: "torchrun"}
	c, err := resumedConfig(dir, config.Args{}, eight)
	require.NoError(t, err)
	require.Equal(t, 8, c.Train.Ranks)
	_, err = resumedConfig(dir, config.Args{Assignments: []string{"train.ranks=2"}}, eight)
	require.ErrorContains(t, err, "train.ranks is 2 on the command line, but torchrun started 8 ranks")
	c, err = resumedConfig(dir, config.Args{Assignments: []string{"train.ranks=4"}}, world.Place{Size: 1})
	require.NoError(t, err)
	require.Equal(t, 4, c.Train.Ranks)
	c, resumes, err := autoConfig(dir, config.Args{Assignments: []string{"train.ranks=4"}}, world.Place{Size: 1})
	require.NoError(t, err)
	require.True(t, resumes)
	require.Equal(t, 4, c.Train.Ranks)
	c, _, err = autoConfig(dir, config.Args{}, eight)
	require.NoError(t, err)
	require.Equal(t, 8, c.Train.Ranks)
}

// startSupervised starts a run of several ranks under the supervisor.
func startSupervised(t *testing.T, ranks int, more ...string) (cmd *exec.Cmd, stderr *syncBuffer, dir string) {
	t.Helper()
	dir = filepath.Join(t.TempDir(), "run")
	args := trainArgs(corpus(t, 20_000), dir, 1_000_000, append(more, "--backend", processes, "--ranks", fmt.Sprint(ranks), "train.eval_every=0")...)
	cmd = exec.Command(os.Args[0], args...)
	return cmd, startCommand(t, cmd), dir
}

// ranksOf returns the processes of the ranks that a supervisor started, by rank.
func ranksOf(t *testing.T, supervisor int) []int {
	t.Helper()
	tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", supervisor))
	require.NoError(t, err)
	if len(tasks) == 0 {
		t.Skip("this system does not list the children of a process")
	}
	found := map[int]int{}
	for _, task := range tasks {
		for child := range strings.FieldsSeq(read(t, task)) {
			pid, err := strconv.Atoi(child)
			require.NoError(t, err)
			for variable := range strings.SplitSeq(read(t, "/proc", child, "environ"), "\x00") {
				if value, ok := strings.CutPrefix(variable, "OCTET_RANK="); ok {
					rank, err := strconv.Atoi(value)
					require.NoError(t, err)
					found[rank] = pid
				}
			}
		}
	}
	var list []int
	for rank := range len(found) {
		list = append(list, found[rank])
	}
	return list
}

// A signal to the supervisor, to all processes, or to one rank alone stops all
// ranks after the same step, with a checkpoint. What a process gets twice counts once.
func TestSignalToRanks(t *testing.T) {
	for name, send := range map[string]func(supervisor int, ranks []int) error{
		"supervisor": func(supervisor int, _ []int) error { return syscall.Kill(supervisor, syscall.SIGTERM) },
		"all": func(supervisor int, ranks []int) error {
			for _, pid := range append(ranks, supervisor) {
				if err := syscall.Kill(pid, syscall.SIGTERM); err != nil {
					return err
				}
			}
			return nil
		},
		"rank 0": func(_ int, ranks []int) error { return syscall.Kill(ranks[0], syscall.SIGTERM) },
		"rank 1": func(_ int, ranks []int) error { return syscall.Kill(ranks[1], syscall.SIGTERM) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cmd, stderr, dir := startSupervised(t, 2, "checkpoint.every=0")
			waitFor(t, func() bool { return steps(dir) >= 3 })
			require.NoError(t, send(cmd.Process.Pid, ranksOf(t, cmd.Process.Pid)))
			var exit *exec.ExitError
			require.ErrorAs(t, cmd.Wait(), &exit)
			require.Equal(t, 143, exit.ExitCode(), stderr)
			list, err := checkpoint.List(filepath.Join(dir, "checkpoints"))
			require.NoError(t, err)
			require.Len(t, list, 1)
			require.NoError(t, checkpoint.Verify(list[0].Path))
			require.Equal(t, steps(dir), list[0].Step)
			require.Equal(t, 1, strings.Count(stderr.String(), "octet: stopped after step "), stderr)
			require.LessOrEqual(t, strings.Count(stderr.String(), "octet: stopping"), 1, stderr)
		})
	}
}

// The second SIGINT, later than a duplicate of the first, ends all ranks at once.
func TestSecondSignalToRanks(t *testing.T) {
	cmd, stderr, _ := startSupervised(t, 2, "train.accumulate=100000") // a step takes half a minute
	waitFor(t, func() bool { return strings.Contains(stderr.String(), "\nrun  ") })
	require.NoError(t, cmd.Process.Signal(os.Interrupt))
	waitFor(t, func() bool { return strings.Contains(stderr.String(), "octet: stopping") })
	time.Sleep(2 * repeatsOfRanks)
	require.NoError(t, cmd.Process.Signal(os.Interrupt))
	var exit *exec.ExitError
	require.ErrorAs(t, cmd.Wait(), &exit)
	require.Equal(t, 130, exit.ExitCode(), stderr)
	require.NotContains(t, stderr.String(), "stopped after step")
}

// A killed rank ends the run with status 1. One rank names it, and the run resumes on another
// number of ranks, also in one process.
func TestKilledRank(t *testing.T) {
	for _, victim := range []int{0, 1} {
		t.Run(fmt.Sprint("rank ", victim), func(t *testing.T) {
			cmd, stderr, dir := startSupervised(t, 3, "checkpoint.every=2")
			waitFor(t, func() bool { return steps(dir) >= 5 })
			require.NoError(t, syscall.Kill(ranksOf(t, cmd.Process.Pid)[victim], syscall.SIGKILL))
			var exit *exec.ExitError
			require.ErrorAs(t, cmd.Wait(), &exit)
			require.Equal(t, exitFailed, exit.ExitCode(), stderr)
			require.Regexp(t, fmt.Sprintf(`\n\[%d\] process \d+ was ended by a signal: killed\n`, victim), stderr.String())
			speaker := map[int]string{0: "[1] octet: rank 1: ", 1: "octet: "}[victim]
			require.Regexp(t, fmt.Sprintf(`(?m)^%s.*rank %d.*: its connection closed: the process ended, or the network failed`, regexp.QuoteMeta(speaker), victim), stderr.String())
			require.NotContains(t, stderr.String(), "[2]")

			_, resumed := succeed(t, "train", "--resume", "--out", dir, "--steps", fmt.Sprint(steps(dir)+1), "--ranks", "2", "--backend", "emu")
			require.Contains(t, resumed, "train.ranks 3 -> 2")
			require.Contains(t, read(t, dir, "config.toml"), "\nranks = 2")
		})
	}
}

// SIGINT while rank 0 waits for the others ends it at once.
func TestInterruptedRendezvous(t *testing.T) {
	for rank := range 2 {
		dir := filepath.Join(t.TempDir(), "run")
		cmd := rankCommand(rank, 2, freeAddress(t), trainArgs(corpus(t, 20_000), dir, 1)...)
		var stderr syncBuffer
		cmd.Stderr = &stderr
		require.NoError(t, cmd.Start())
		if rank == 0 {
			waitFor(t, func() bool { return strings.Contains(stderr.String(), "octet: rank 0 of 2") })
		} else {
			time.Sleep(500 * time.Millisecond) // it prints nothing
		}
		start := time.Now()
		require.NoError(t, cmd.Process.Signal(os.Interrupt))
		var exit *exec.ExitError
		require.ErrorAs(t, cmd.Wait(), &exit)
		require.Equal(t, 130, exit.ExitCode(), &stderr)
		require.Less(t, time.Since(start), 10*time.Second)
		require.NoDirExists(t, dir)
	}
}

// Of a failure one rank prints the reason: rank 0, or the first other one of each machine if
// rank 0 is gone.
func TestWhichRankSpeaks(t *testing.T) {
	gone, told := &world.Lost{Rank: 0, Cause: "closed", Gone: true}, &world.Lost{Rank: 3, Host: "h", Cause: "killed"}
	speaks := func(p world.Place, lost *world.Lost) bool {
		return (&member{place: p, group: &world.Group{}}).speaks(lost)
	}
	require.True(t, speaks(world.Place{Rank: 0}, told))
	require.False(t, speaks(world.Place{Rank: 3, LocalRank: 3}, told))
	require.False(t, speaks(world.Place{Rank: 8, LocalRank: 0}, told))
	require.True(t, speaks(world.Place{Rank: 1, LocalRank: 1}, gone))
	require.False(t, speaks(world.Place{Rank: 2, LocalRank: 2}, gone))
	require.True(t, speaks(world.Place{Rank: 8, LocalRank: 0}, gone))
	require.NoError(t, (&member{}).ended(nil))
	plain := errors.New("a full disk")
	require.Equal(t, plain, (&member{place: world.Place{Size: 1}}).ended(plain))
}
