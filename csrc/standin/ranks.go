package standin

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/stretchr/testify/require"

	"octet/backend/world"
)

const (
	// inRank marks a process that RunRanks started.
	inRank = "OCTET_TEST_IN_RANK"
	// mpiexec is a launcher with its options, such as "/usr/bin/mpiexec". If it is set,
	// RunRanks starts processes by it, with the MPI library that OCTET_LIBMPI names.
	mpiexec = "OCTET_TEST_MPIEXEC"
)

// InRank reports whether this process is one of those that RunRanks started.
func InRank() bool { return os.Getenv(inRank) != "" }

// RealMPI reports whether ranks use a real MPI library and launcher instead of stand-ins.
func RealMPI() bool { return os.Getenv(mpiexec) != "" }

// Launcher returns the command line of the real launcher.
func Launcher() []string { return strings.Fields(os.Getenv(mpiexec)) }

// RankTest is the part of *testing.T that RunRanks needs.
type RankTest interface {
	T
	Name() string
}

// Exit is how a process of a rank ended.
type Exit struct {
	Code   int // -1: a signal
	Output string
}

// RunRanks runs the calling test in n processes of the test binary, ranks of MPI, and
// returns how they ended, in order of rank. The test calls InRank first, and runs its part
// if that is true. variables, such as "STANDIN_MPI_ERROR=16", are added to the environment.
//
// If OCTET_TEST_MPIEXEC names a launcher, there is one Exit, that of the launcher. Without
// one and without a C compiler, RunRanks skips the test.
func RunRanks(t RankTest, n int, variables ...string) []Exit {
	pattern := "^" + strings.ReplaceAll(t.Name(), "/", "$/^") + "$"
	// The ranks end before the test binary does, whose timeout is longer by default.
	binary := []string{os.Args[0], "-test.run=" + pattern, "-test.bench=" + pattern, "-test.benchtime=1x", "-test.timeout=2m"}
	environment := append(os.Environ(), append(variables, inRank+"=1")...)
	if RealMPI() {
		return run(t, environment, 1, func(int) []string { return nil }, append(append(Launcher(), "-n", fmt.Sprint(n)), binary...))
	}
	file := filepath.Join(t.TempDir(), "mpi")
	exits := run(t, environment, n, func(rank int) []string { return MPIRank(t, file, rank, n) }, binary)
	unreported, err := filepath.Glob(file + ".*")
	require.NoError(t, err)
	require.Empty(t, unreported, "ranks ended without libc's exit handlers after MPI_Finalize: use libmpi.Exit, or mpiexec kills other ranks")
	return exits
}

// MPIRank returns the environment of a rank that uses the stand-in for MPI. Its ranks share a new
// file. Without a C compiler, MPIRank skips the test.
func MPIRank(t RankTest, file string, rank, ranks int) []string {
	if _, err := exec.LookPath(compiler()); err != nil {
		t.Skipf("needs a C compiler for the stand-in for MPI: %v", err)
	}
	return []string{
		"OCTET_LIBMPI=" + Build(t, "libmpi_abi"), "OCTET_STANDIN_MPI=" + file,
		fmt.Sprint("PMI_RANK=", rank), fmt.Sprint("PMI_SIZE=", ranks), fmt.Sprint("MPI_LOCALRANKID=", rank), fmt.Sprint("MPI_LOCALNRANKS=", ranks),
	}
}

// RunWorld is RunRanks for ranks that octet train --ranks would start. They call JoinWorld. The
// test binary gets the flags.
func RunWorld(t RankTest, n int, flags ...string) []Exit {
	address, listener, err := world.Loopback()
	require.NoError(t, err)
	if listener != nil {
		require.NoError(t, listener.Close())
	}
	pattern := "^" + strings.ReplaceAll(t.Name(), "/", "$/^") + "$"
	command := []string{os.Args[0], "-test.run=" + pattern, "-test.bench=" + pattern, "-test.benchtime=1x", "-test.timeout=2m"}
	return run(t, append(os.Environ(), inRank+"=1"), n, func(rank int) []string { return world.Environment(rank, n, address) },
		append(command, flags...))
}

// JoinWorld returns the group of a process that RunWorld started.
func JoinWorld(t interface {
	RankTest
	Context() context.Context
}, timeout time.Duration,
) *world.Group {
	place, found, err := world.FromEnv(os.LookupEnv)
	require.NoError(t, err)
	require.True(t, found)
	g, err := world.Join(t.Context(), world.Options{Place: place, Timeout: timeout})
	require.NoError(t, err)
	return g
}

// run starts n processes of a command, each with an environment of its own, and waits for
// them.
func run(t RankTest, environment []string, n int, own func(rank int) []string, command []string) []Exit {
	processes, outputs, exits := make([]*exec.Cmd, n), make([]bytes.Buffer, n), make([]Exit, n)
	for rank := range n {
		p := exec.Command(command[0], command[1:]...)
		p.Env = append(append([]string{}, environment...), own(rank)...)
		p.Stdout, p.Stderr = &outputs[rank], &outputs[rank]
		require.NoError(t, p.Start())
		processes[rank] = p
	}
	for rank, p := range processes {
		err := p.Wait()
		if failed := (*exec.ExitError)(nil); err != nil && !errors.As(err, &failed) {
			require.NoError(t, err)
		}
		exits[rank] = Exit{p.ProcessState.ExitCode(), outputs[rank].String()}
	}
	return exits
}

// Succeeded fails the test unless all ranks ended with 0.
func Succeeded(t T, exits []Exit) {
	var failed strings.Builder
	for rank, e := range exits {
		if e.Code != 0 {
			fmt.Fprintf(&failed, "rank %d ended with status %d:\n%s\n", rank, e.Code, e.Output)
		}
	}
	require.Empty(t, failed.String())
}

// figure begins the lines that LogFigures finds in the output of ranks.
const figure = "figure: "

// Figure prints a figure of a benchmark that runs in ranks.
func Figure(format string, values ...any) { fmt.Printf("\n"+figure+format+"\n", values...) }

// Logger is the part of *testing.B that LogFigures needs.
type Logger interface {
	T
	Helper()
	Logf(format string, args ...any)
}

// LogFigures logs the figures of all ranks.
func LogFigures(t Logger, exits []Exit) {
	t.Helper()
	Succeeded(t, exits)
	for _, e := range exits {
		for line := range strings.Lines(e.Output) {
			if _, text, found := strings.Cut(line, figure); found {
				t.Logf("%s", strings.TrimSpace(text))
			}
		}
	}
}
