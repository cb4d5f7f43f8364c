package cli

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"octet/checkpoint"
	"octet/internal/disk"
)

// failpoint is a point in a run: around the nth change of a name that it makes to the disk.
type failpoint struct {
	// before, half, after, or later: the duration After later, mostly within a step. With
	// slow, the process survives, and the change takes the duration After.
	When  string
	Name  string // see nameOf; "any" is every change
	N     int    // 1 for the first
	After time.Duration
}

// killAt is the environment variable with the failpoint of the test binary that runs as the
// octet command. The octet binary itself reads no such variable.
const killAt = "OCTET_TEST_KILL_AT"

const failpointFormat = "%s %s %d %d"

func (p failpoint) String() string {
	return fmt.Sprintf(failpointFormat, p.When, p.Name, p.N, p.After)
}

func parseFailpoint(text string) (p failpoint, err error) {
	_, err = fmt.Sscanf(text, failpointFormat, &p.When, &p.Name, &p.N, &p.After)
	return p, err
}

// changingName matches the parts of names that differ between runs: random parts, times, and
// the numbers of t.TempDir.
var changingName = regexp.MustCompile(`\.partial-[0-9a-f]{8}|(tfevents)\..*|^\d+$`)

// nameOf returns a name of a change that is the same in every process:
// write:step-00000004/state.json.
func nameOf(c disk.Change) string {
	dir, base := filepath.Split(c.Path)
	if parent := filepath.Base(dir); strings.Contains(parent, "step-") {
		base = parent + "/" + base
	}
	return string(c.Op) + ":" + changingName.ReplaceAllString(base, "$1")
}

// arm makes this process kill itself with SIGKILL at a failpoint.
func (p failpoint) arm() {
	self, err := os.FindProcess(os.Getpid())
	if err != nil {
		panic(err)
	}
	die := func() {
		if err := self.Kill(); err != nil {
			panic(err)
		}
		select {}
	}
	var mu sync.Mutex
	n := 0
	disk.Intercept(func(c disk.Change) error {
		if p.Name != "any" && nameOf(c) != p.Name {
			return c.Do()
		}
		mu.Lock()
		n++
		reached := n == p.N
		mu.Unlock()
		if !reached {
			return c.Do()
		}
		switch p.When {
		case "before":
			die()
		case "half":
			_ = c.Half()
			die()
		case "after":
			_ = c.Do()
			die()
		case "later":
			time.AfterFunc(p.After, die)
		case "slow":
			time.Sleep(p.After)
		default:
			panic(p)
		}
		return c.Do()
	})
}

// killed is a run to kill at its failpoints.
type killed struct {
	text, uninterrupted string      // the folder of one that was not killed, and what it read
	config              []string    // beside trainArgs
	points              []failpoint // of every change that it made
}

// killedSteps give three checkpoints, of which retention keeps two.
const killedSteps = 9

// uninterruptedRun runs once to the end and records all failpoints.
func uninterruptedRun(t *testing.T, config ...string) killed {
	t.Helper()
	k := killed{text: corpus(t, 20_000), uninterrupted: filepath.Join(t.TempDir(), "run")}
	k.config = append([]string{
		"checkpoint.every=3", "train.eval_every=5", "train.health_every=4", "data.val_bytes=300", "train.accumulate=2",
	}, config...)
	var mu sync.Mutex
	count := map[string]int{}
	restore := disk.Intercept(func(c disk.Change) error {
		mu.Lock()
		defer mu.Unlock()
		name := nameOf(c)
		count[name]++
		for _, when := range []string{"before", "half", "after"} {
			if when != "half" || c.Half != nil {
				k.points = append(k.points, failpoint{When: when, Name: name, N: count[name]})
			}
		}
		return c.Do()
	})
	defer restore()
	succeed(t, k.train(k.uninterrupted)...)
	return k
}

func (k killed) train(dir string) []string {
	return trainArgs(k.text, dir, killedSteps, k.config...)
}

// at kills a new run at the first failpoint and its resumed processes at the others, lets
// the last process finish, and requires that nothing is lost. It returns the number of
// killed processes: a timed or random failpoint may come after the end of the run.
func (k killed) at(t *testing.T, first failpoint, more ...failpoint) (kills int) {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "run")
	resume := []string{"train", "--resume", "--out", dir}
	next := func() []string {
		if _, err := os.Stat(filepath.Join(dir, "config.toml")); err != nil {
			return k.train(dir) // there is no run yet
		}
		return resume
	}
	for i, p := range append([]failpoint{first}, more...) {
		cmd, stderr := start(t, next(), killAt+"="+p.String())
		err := cmd.Wait()
		if i == 0 && p.When != "later" {
			require.Error(t, err, "%v was not reached", p)
		}
		if err != nil {
			kills++
			require.Equal(t, -1, cmd.ProcessState.ExitCode(), "%v: the process did not end by the signal:\n%v", p, stderr)
		}
	}
	status, _, stderr := octet(next()...)
	require.Zero(t, status, "after %v %v:\n%s", first, more, stderr)
	sameRun(t, k.uninterrupted, dir)
	require.Equal(t, killedSteps, strings.Count(read(t, dir, "timing.jsonl"), "\n"))
	require.Equal(t, read(t, k.uninterrupted, "data.json"), read(t, dir, "data.json"))
	for _, folder := range []string{dir, filepath.Join(dir, "checkpoints")} {
		require.NotContains(t, strings.Join(names(t, folder), " "), ".partial", "after %v %v", first, more)
	}
	return kills
}

// later returns a failpoint at a random time, mostly within a step.
func later() failpoint {
	return failpoint{When: "later", Name: "write:metrics.jsonl", N: 1 + rand.IntN(killedSteps), After: time.Duration(rand.IntN(4000)) * time.Microsecond}
}

// anywhere returns a failpoint at a random change of a resumed process.
func anywhere() failpoint {
	return failpoint{When: []string{"before", "after"}[rand.IntN(2)], Name: "any", N: 1 + rand.IntN(40)}
}

// A killed and resumed run ends like one that was not killed: before, half way through and
// after any change to the disk, within a step, and during a resume after another kill; with
// one rank, with two, and with two that share the optimizer state.
func TestKilledAnywhere(t *testing.T) {
	alone, two, shared := []string{}, []string{"train.ranks=2"}, []string{"train.ranks=2", "train.zero_stage=1"}
	if os.Getenv("OCTET_LONG") == "" {
		uninterruptedRun(t, alone...).at(t, failpoint{When: "half", Name: "write:.step-00000006/optimizer.safetensors", N: 1}, anywhere())
		uninterruptedRun(t, shared...).at(t, later())
		return
	}
	const random = 30
	for _, config := range [][]string{alone, two, shared} {
		k := uninterruptedRun(t, config...)
		var kills atomic.Int64
		t.Run(strings.Join(config, " "), func(t *testing.T) {
			try := func(first failpoint, more ...failpoint) {
				t.Run(fmt.Sprint(first, more), func(t *testing.T) {
					t.Parallel()
					kills.Add(int64(k.at(t, first, more...)))
				})
			}
			for _, p := range k.points {
				try(p)
			}
			for range random {
				try(later(), anywhere())
			}
		})
		t.Logf("%q: %d kills, %d of them at every change once", config, kills.Load(), len(k.points))
	}
}

// intactCheckpoints verifies every checkpoint of a run and lists their steps, newest first.
func intactCheckpoints(t *testing.T, dir string) (steps []int) {
	t.Helper()
	list, err := checkpoint.List(filepath.Join(dir, "checkpoints"))
	require.NoError(t, err)
	for _, e := range list {
		require.NoError(t, e.Damage)
		c, err := checkpoint.Open(e.Path)
		require.NoError(t, err)
		require.NoError(t, c.Close())
		steps = append(steps, e.Step)
	}
	return steps
}
