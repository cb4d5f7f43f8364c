package deploy

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// octet is the command under test.
var octet string

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "deploy")
	if err != nil {
		panic(err)
	}
	octet = filepath.Join(dir, "octet")
	build := exec.Command("go", "build", "-o", octet, ".")
	build.Dir, build.Env = "..", append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		panic(fmt.Sprintf("%v: %s", err, out))
	}
	status := m.Run()
	if err := os.RemoveAll(dir); err != nil {
		panic(err)
	}
	os.Exit(status)
}

// requireAccepted requires a command line of octet train that can be repeated, and that octet
// accepts: only the text is missing here.
func requireAccepted(t *testing.T, command []string) {
	t.Helper()
	require.Equal(t, []string{"octet", "train"}, command[:2])
	require.Contains(t, command, "--resume=auto")
	require.Contains(t, command, "--out")
	text := command[slices.Index(command, "--data")+1]
	c := exec.Command(octet, command[1:]...)
	c.Env = []string{"HOME=" + t.TempDir()}
	out, err := c.CombinedOutput()
	require.Error(t, err)
	require.Equal(t, fmt.Sprintf("octet: data: %q does not exist: name an existing file or folder\n", text), string(out))
}

// slurm runs the script with a srun that exits with a status, and returns the script's status,
// the arguments of srun and those of scontrol.
func slurm(t *testing.T, status, restarts int) (got int, srun, scontrol string) {
	t.Helper()
	bash, err := exec.LookPath("bash")
	if err != nil {
		t.Skip("no bash")
	}
	dir := t.TempDir()
	for name, status := range map[string]int{"srun": status, "scontrol": 0} {
		script := fmt.Sprintf("#!%s\necho \"$@\" >>%q\nexit %d\n", bash, filepath.Join(dir, name+".log"), status)
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(script), 0o700)) //nolint:gosec // a program
	}
	c := exec.Command(bash, "slurm.sbatch")
	c.Env = []string{"PATH=" + dir, "HOME=" + dir, "SLURM_JOB_ID=71"}
	if restarts > 0 { // Slurm sets it for a job that it restarted
		c.Env = append(c.Env, fmt.Sprintf("SLURM_RESTART_COUNT=%d", restarts))
	}
	out, err := c.CombinedOutput()
	if err != nil {
		require.IsType(t, &exec.ExitError{}, err)
	}
	require.Empty(t, string(out))
	log := func(name string) string {
		text, err := os.ReadFile(filepath.Join(dir, name+".log"))
		if !os.IsNotExist(err) {
			require.NoError(t, err)
		}
		return strings.TrimSpace(string(text))
	}
	return c.ProcessState.ExitCode(), log("srun"), log("scontrol")
}

// The job restarts after statuses that starting again can mend, and keeps the status.
func TestSlurmRequeues(t *testing.T) {
	for _, c := range []struct {
		status, restarts int
		again            bool
	}{
		{0, 0, false},    // done
		{1, 0, true},     // failed
		{1, 19, true},    // for the 20th time
		{1, 20, false},   // too often
		{2, 0, false},    // wrong input
		{130, 0, false},  // interrupted
		{137, 0, true},   // a rank was killed
		{137, 20, false}, // too often
		{143, 0, true},   // stopped and saved
		{143, 99, true},  // that is no failure
	} {
		t.Run(fmt.Sprintf("status %d after %d restarts", c.status, c.restarts), func(t *testing.T) {
			status, _, scontrol := slurm(t, c.status, c.restarts)
			require.Equal(t, c.status, status)
			if c.again {
				require.Equal(t, "requeue 71", scontrol)
			} else {
				require.Empty(t, scontrol)
			}
		})
	}
}

func TestSlurmCommand(t *testing.T) {
	_, srun, _ := slurm(t, 0, 0)
	command := strings.Fields(srun)
	requireAccepted(t, command[slices.Index(command, "octet"):])
}
