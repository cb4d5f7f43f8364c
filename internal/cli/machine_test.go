//go:build (cuda || gaudi) && cgo && linux

package cli

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// machine holds the environment of a process that uses stand-ins for a vendor's libraries.
type machine struct {
	t           *testing.T
	environment []string
}

func newMachine(t *testing.T) machine {
	return machine{t, append(os.Environ(), asCommand+"=1")}
}

// with returns a machine with more environment variables.
func (m machine) with(settings ...string) machine {
	m.environment = append(m.environment[:len(m.environment):len(m.environment)], settings...)
	return m
}

func (m machine) command(args ...string) *exec.Cmd {
	c := exec.Command(os.Args[0], args...)
	c.Env = m.environment
	return c
}

// octet runs a command line in its own process: a process keeps its device until it ends.
func (m machine) octet(args ...string) (status int, stdout, stderr string) {
	m.t.Helper()
	var out, err bytes.Buffer
	c := m.command(args...)
	c.Stdout, c.Stderr = &out, &err
	if e := c.Run(); e != nil {
		require.ErrorAs(m.t, e, new(*exec.ExitError))
	}
	return c.ProcessState.ExitCode(), out.String(), err.String()
}

func (m machine) succeed(args ...string) (stderr string) {
	m.t.Helper()
	status, stdout, stderr := m.octet(args...)
	require.Zero(m.t, status, "octet %s\n%s%s", strings.Join(args, " "), stdout, stderr)
	return stderr
}

// sentence returns the error, which must be one line of stderr.
func (m machine) sentence(stderr string) string {
	m.t.Helper()
	var errs []string
	for line := range strings.Lines(stderr) {
		if text, ok := strings.CutPrefix(line, "octet: "); ok && !strings.HasPrefix(text, "training on ") {
			errs = append(errs, strings.TrimSuffix(text, "\n"))
		}
	}
	require.Len(m.t, errs, 1, stderr)
	return errs[0]
}

func copyOf(t *testing.T, dir string) string {
	to := filepath.Join(t.TempDir(), "copy")
	require.NoError(t, os.CopyFS(to, os.DirFS(dir)))
	return to
}
