//go:build unix

package launch

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"octet/backend/world"
)

// role is the argument that makes the test binary a rank or a supervisor.
const role = "octet-test-role"

func TestMain(m *testing.M) {
	if len(os.Args) > 2 && os.Args[1] == role {
		os.Exit(play(os.Args[2]))
	}
	os.Exit(m.Run())
}

// play plays a part.
func play(part string) int {
	if part == "supervisor" { // of ranks that sleep and write their process id into a folder
		status, err := Run(Options{Ranks: 4, Command: command("sleep", os.Args[3]), Out: os.Stdout, Err: os.Stderr})
		if err != nil {
			panic(err)
		}
		return status
	}
	rank, _ := strconv.Atoi(os.Getenv("OCTET_RANK"))
	switch part {
	case "print":
		fmt.Printf("out %d\n", rank)
		fmt.Fprintf(os.Stderr, "err %d\r\nno newline", rank)
	case "join":
		return join()
	case "fail": // rank 2 fails, the others end with the status that they agreed on
		if rank == 2 {
			return 5
		}
		return 2
	case "contradiction": // rank 2 fails by itself, the others wait for it
		if rank == 2 {
			return 2
		}
		time.Sleep(time.Minute)
	case "killed": // the others notice it
		if rank == 2 {
			_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
			time.Sleep(time.Minute)
		}
		time.Sleep(100 * time.Millisecond)
		return 1
	case "stubborn": // rank 0 fails, the others ignore SIGTERM
		if rank == 0 {
			time.Sleep(300 * time.Millisecond) // the others have called Ignore
			return 1
		}
		signal.Ignore(syscall.SIGTERM)
		time.Sleep(time.Minute)
	case "sleep":
		path := filepath.Join(os.Args[3], strconv.Itoa(os.Getpid()))
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			panic(err)
		}
		time.Sleep(time.Minute)
	case "signals": // a rank counts what it gets until SIGTERM
		got := make(chan os.Signal, 10)
		signal.Notify(got, os.Interrupt, syscall.SIGTERM, syscall.SIGUSR1)
		fmt.Println("ready")
		text := ""
		for s := range got {
			text += fmt.Sprint(s, ";")
			if s == syscall.SIGTERM {
				break
			}
		}
		fmt.Println(text)
		return 143
	}
	return 0
}

// join connects the ranks, and rank 0 checks what the others sent.
func join() int {
	place, found, err := world.FromEnv(os.LookupEnv)
	if err != nil || !found || !place.Supervised() {
		panic(fmt.Sprint(place, found, err))
	}
	g, err := world.Join(context.Background(), world.Options{Place: place, Timeout: time.Minute})
	if err != nil {
		panic(err)
	}
	all, err := g.Exchange(context.Background(), "ranks", []byte{byte(place.LocalRank)})
	if err != nil {
		panic(err)
	}
	for rank, data := range all {
		if !bytes.Equal(data, []byte{byte(rank)}) {
			panic(fmt.Sprint(all))
		}
	}
	if err := g.Leave(context.Background()); err != nil {
		panic(err)
	}
	return 0
}

// command returns a command that makes the test binary play a part.
func command(part ...string) []string { return append([]string{os.Args[0], role}, part...) }

// run runs ranks that play a part.
func run(t *testing.T, n int, part string) (status int, stdout, stderr string, took time.Duration) {
	t.Helper()
	start := time.Now()
	var out, errs bytes.Buffer
	status, err := Run(Options{
		Ranks: n, Command: command(part), Out: &out, Err: &errs, Grace: 500 * time.Millisecond,
	})
	require.NoError(t, err)
	return status, out.String(), errs.String(), time.Since(start)
}

// The output of rank 0 is as it is. That of other ranks goes to standard error, each line
// after its rank.
func TestOutput(t *testing.T) {
	status, out, errs, _ := run(t, 3, "print")
	require.Zero(t, status)
	require.Equal(t, "out 0\n", out)
	for _, want := range []string{"err 0\r\nno newline", "[1] out 1\n", "[1] err 1\n", "[1] no newline\n", "[2] out 2\n", "[2] err 2\n", "[2] no newline\n"} {
		require.Equal(t, 1, strings.Count(errs, want), "%q\n%s", want, errs)
	}
}

func TestPrefixOfLongLines(t *testing.T) {
	var out bytes.Buffer
	p := &prefixed{prefix: "[1] ", to: newLines(&out)}
	long := strings.Repeat("x", maxLine) + "yz"
	for _, part := range []string{"a\nb", "c\n", "\n", long} {
		n, err := p.Write([]byte(part))
		require.NoError(t, err)
		require.Equal(t, len(part), n)
	}
	p.flush()
	p.flush()
	require.Equal(t, "[1] a\n[1] bc\n[1] \n[1] "+long[:maxLine]+"\n[1] yz\n", out.String())
}

// 64 ranks join through the inherited listener.
func TestManyRanks(t *testing.T) {
	status, _, errs, _ := run(t, 64, "join")
	require.Zero(t, status, errs)
	require.Empty(t, errs)
}

// The status is the one that the ranks agreed on.
func TestStatus(t *testing.T) {
	for part, want := range map[string]int{"fail": 2, "contradiction": 2, "killed": 1, "stubborn": 1} {
		t.Run(part, func(t *testing.T) {
			t.Parallel()
			status, _, errs, took := run(t, 4, part)
			require.Equal(t, want, status, errs)
			require.Less(t, took, 30*time.Second, "the ranks sleep for a minute")
			if part == "killed" {
				require.Regexp(t, `^\[2\] process \d+ was ended by a signal: killed\n$`, errs)
			} else {
				require.Empty(t, errs)
			}
		})
	}
}

// A program that cannot be started is an error, and no rank stays.
func TestNoProgram(t *testing.T) {
	_, err := Run(Options{Ranks: 2, Command: []string{filepath.Join(t.TempDir(), "none")}, Out: &bytes.Buffer{}, Err: &bytes.Buffer{}})
	require.ErrorContains(t, err, "rank 0 could not be started: ")
	require.ErrorIs(t, err, os.ErrNotExist)
}

// The ranks of a supervisor that SIGKILL ends end with it.
func TestNoOrphans(t *testing.T) {
	dir := t.TempDir()
	c := command("supervisor", dir)
	supervisor := exec.Command(c[0], c[1:]...)
	require.NoError(t, supervisor.Start())
	var ids []int
	require.Eventually(t, func() bool {
		entries, err := os.ReadDir(dir)
		require.NoError(t, err)
		ids = nil
		for _, e := range entries {
			id, err := strconv.Atoi(e.Name())
			require.NoError(t, err)
			require.NoError(t, syscall.Kill(id, 0))
			ids = append(ids, id)
		}
		return len(ids) == 4
	}, 30*time.Second, 10*time.Millisecond)
	require.NoError(t, supervisor.Process.Kill())
	require.Error(t, supervisor.Wait())
	require.Eventually(t, func() bool {
		for _, id := range ids {
			if running(id) {
				return false
			}
		}
		return true
	}, 10*time.Second, 10*time.Millisecond)
}

// running reports whether a process runs. One that has ended may still wait for its parent.
func running(id int) bool {
	if errors.Is(syscall.Kill(id, 0), syscall.ESRCH) {
		return false
	}
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", id))
	return err != nil || !strings.Contains(string(stat), ") Z ")
}

// Each signal reaches all ranks once.
func TestSignals(t *testing.T) {
	read, write, err := os.Pipe()
	require.NoError(t, err)
	signals := make(chan os.Signal, 3)
	done := make(chan int, 1)
	go func() {
		status, err := Run(Options{
			Ranks: 3, Command: command("signals"), Out: write, Err: write, Signals: signals,
		})
		if err != nil {
			panic(err)
		}
		_ = write.Close()
		done <- status
	}()
	in := bufio.NewReader(read)
	line := func() string {
		text, err := in.ReadString('\n')
		require.NoError(t, err)
		return strings.TrimSpace(text)
	}
	for range 3 {
		require.Regexp(t, `^(\[\d\] )?ready$`, line())
	}
	for _, s := range []syscall.Signal{syscall.SIGINT, syscall.SIGUSR1, syscall.SIGTERM} {
		signals <- s
		time.Sleep(100 * time.Millisecond) // their order in a process is not defined
	}
	for range 3 {
		require.Regexp(t, `^(\[\d\] )?interrupt;user defined signal 1;terminated;$`, line())
	}
	require.Equal(t, 143, <-done)
	require.NoError(t, read.Close())
}
