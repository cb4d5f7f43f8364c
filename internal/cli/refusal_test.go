//go:build unix

package cli

import (
	"bytes"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Ranks that cannot train together end within a deadline. One says why, no folder is left.
func TestRanksThatCannotBegin(t *testing.T) {
	text := corpus(t, 20_000)
	other := filepath.Join(t.TempDir(), "text.txt")
	require.NoError(t, os.WriteFile(other, bytes.Repeat([]byte("another text\n"), 2000), 0o600))
	program := func(t *testing.T) string { // another version of this one
		code, err := os.ReadFile(os.Args[0])
		require.NoError(t, err)
		name := filepath.Join(t.TempDir(), "octet")
		require.NoError(t, os.WriteFile(name, append(code, 0), 0o700))
		return name
	}
	secret := func(t *testing.T, rank int) string {
		name := filepath.Join(t.TempDir(), "secret")
		require.NoError(t, os.WriteFile(name, bytes.Repeat([]byte{'a' + byte(rank)}, 32), 0o600))
		return "OCTET_SECRET_FILE=" + name
	}
	for name, test := range map[string]struct {
		ranks   int // processes, of a run of three
		edit    func(t *testing.T, rank int, c *exec.Cmd)
		status  []int
		speaker int
		want    string
	}{
		"another program": {3, func(t *testing.T, rank int, c *exec.Cmd) {
			if rank == 2 {
				c.Path = program(t)
			}
		}, []int{2, 2, 2}, 0, `octet: rank 2 on \S+: its program differs: [0-9a-f]{64}, rank 0 on \S+ has [0-9a-f]{64}\n$`},
		"another text": {3, func(_ *testing.T, rank int, c *exec.Cmd) {
			if rank == 1 {
				c.Args[3] = other
			}
		}, []int{2, 2, 2}, 0, `octet: rank 1 on \S+: its text differs: [0-9a-f]{64}, rank 0 has [0-9a-f]{64}\n$`},
		"another secret": {3, func(t *testing.T, rank int, c *exec.Cmd) {
			c.Env = append(c.Env, secret(t, rank/2))
		}, []int{2, 2, 2}, 2, `^octet: rank 2 on \S+: the other process has another secret: all need the same OCTET_SECRET_FILE\n$`},
		"a rank twice": {3, func(_ *testing.T, rank int, c *exec.Cmd) {
			if rank == 2 {
				c.Env = append(c.Env, "OCTET_RANK=1")
			}
		}, []int{2, 2, 2}, 0, `octet: rank 1 on \S+: two processes say they are rank 1: \S+, process \d+, and \S+, process \d+\n$`},
		"a rank that never comes": {2, func(*testing.T, int, *exec.Cmd) {}, []int{1, 1}, 0, `octet: rank 2: it did not join \(missing: rank 2 of 3\): .*\n$`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir, begin := filepath.Join(t.TempDir(), "run"), time.Now()
			e := runRanksOf(t, 3, test.ranks, func(rank int, c *exec.Cmd) {
				c.Env = append(c.Env, joinDeadline+"=2s")
				c.Args = append(c.Args, trainArgs(text, dir, 4, "--backend", processes)...)
				test.edit(t, rank, c)
			})
			require.Less(t, time.Since(begin), 7*time.Second) // two of them wait for the deadline
			require.Equal(t, test.status, e.status, e.err)
			require.Regexp(t, test.want, e.err[test.speaker])
			require.NoDirExists(t, dir)
		})
	}
}

// If another program has the port of the rendezvous, rank 0 says so with status 2. The others
// wait for it in vain.
func TestTakenPort(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	c := rankCommand(0, 2, l.Addr().String(), trainArgs(corpus(t, 20_000), filepath.Join(t.TempDir(), "run"), 4, "--backend", processes)...)
	said, err := c.CombinedOutput()
	require.Error(t, err)
	require.Equal(t, exitInput, c.ProcessState.ExitCode(), "%s", said)
	require.Regexp(t, fmt.Sprintf(`octet: rank 0: it cannot listen at the rendezvous: listen tcp %s: bind: address already in use\n$`, l.Addr()), string(said))
}
