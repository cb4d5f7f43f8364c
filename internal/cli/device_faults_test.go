//go:build (cuda || gaudi) && cgo && linux

package cli

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"octet/checkpoint"
)

// faultsOfRanks sends a signal to a random one of the two processes of runs on a device, at a
// random moment. Each run ends within its deadline, says once which rank was lost, leaves no process, and
// resumes from its last checkpoint with the bits of an undisturbed run. With OCTET_LONG there are
// 40 signals.
func faultsOfRanks(t *testing.T, m machine, device string) {
	t.Helper()
	const silence = 3 * time.Second // 10 s, shortened
	text, want := corpus(t, 8_000), filepath.Join(t.TempDir(), "want")
	args := func(dir string) []string {
		return trainArgs(text, dir, 30, "--backend", device, "--json", "--recipe", "bf16", "--ranks", "2", "train.accumulate=1", "train.zero_stage=1",
			"train.health_every=0", "train.eval_every=0", "data.val_bytes=0", "checkpoint.every=1")
	}
	m.succeed(args(want)...)
	faults := []syscall.Signal{syscall.SIGKILL, syscall.SIGTERM, syscall.SIGSTOP}
	if os.Getenv("OCTET_LONG") != "" {
		for len(faults) < 40 {
			faults = append(faults, faults[len(faults)%3])
		}
	}
	for i, fault := range faults {
		t.Run(fmt.Sprint(i, strings.ReplaceAll(fault.String(), " ", "")), func(t *testing.T) {
			dir, victim := filepath.Join(t.TempDir(), "run"), rand.IntN(2)
			command := m.with(fmt.Sprintf("%s=%v", silenceDeadline, silence)).command(args(dir)...)
			var stderr syncBuffer
			command.Stderr = &stderr
			require.NoError(t, command.Start())
			waitFor(t, func() bool {
				list, _ := checkpoint.List(filepath.Join(dir, "checkpoints"))
				return len(list) > 0
			})
			time.Sleep(time.Duration(rand.IntN(100)) * time.Millisecond)
			ranks := ranksOf(t, command.Process.Pid)
			if len(ranks) == 2 { // else the run has just ended
				require.NoError(t, syscall.Kill(ranks[victim], fault))
				if fault == syscall.SIGSTOP {
					require.Eventually(t, func() bool { return syscall.Kill(ranks[1-victim], 0) == syscall.ESRCH }, silence+10*time.Second, time.Millisecond, "%v", &stderr)
					require.NoError(t, syscall.Kill(ranks[victim], syscall.SIGKILL))
				}
			}
			begin := time.Now()
			_ = command.Wait()
			require.Less(t, time.Since(begin), 15*time.Second, "%v", &stderr)
			for _, pid := range ranks {
				require.ErrorIs(t, syscall.Kill(pid, 0), syscall.ESRCH)
			}
			if status := command.ProcessState.ExitCode(); status != 0 { // the run was not done before
				intact := intactCheckpoints(t, dir)
				require.NotEmpty(t, intact)
				if fault == syscall.SIGTERM {
					require.Equal(t, 143, status, "%v", &stderr)
					require.Equal(t, steps(dir), intact[0])
				} else {
					require.Equal(t, exitFailed, status, "%v", &stderr)
					named := regexp.MustCompile(fmt.Sprintf(`(?m)^(\[1\] )?octet: .*rank %d\b[^:]*: (its connection closed|no sign of life for 3s)`, victim))
					require.Len(t, named.FindAllString(stderr.String(), -1), 1, "%v", &stderr)
				}
				m.succeed("train", "--resume", "--out", dir, "--backend", device, "--json")
			}
			sameRun(t, want, dir)
		})
	}
}
