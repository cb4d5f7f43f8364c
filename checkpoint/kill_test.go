package checkpoint

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/internal/disk"
	"octet/internal/disk/powercut"
)

// rankProcess is the environment variable that makes the test binary one rank, with a
// rankJob.
const rankProcess = "OCTET_TEST_RANK"

// rankJob is what a process does: rank 0 of 1 saves a checkpoint of step 200 with three
// shards, other ranks write their shard and print their part. The process kills itself at
// a change to the disk.
type rankJob struct {
	Path        string // the folder of checkpoints, or the hidden one
	Rank, Ranks int
	When        string // before, half, after; empty: not killed
	Change      int    // 0 for the first
}

func runRank(text string) {
	var job rankJob
	if err := json.Unmarshal([]byte(text), &job); err != nil {
		panic(err)
	}
	self, err := os.FindProcess(os.Getpid())
	if err != nil {
		panic(err)
	}
	n := -1
	disk.Intercept(func(c disk.Change) error {
		n++
		if job.When == "" || n != job.Change {
			return c.Do()
		}
		switch {
		case job.When == "after":
			_ = c.Do()
		case job.When == "half" && c.Half != nil:
			_ = c.Half()
		}
		_ = self.Kill()
		select {}
	})
	if job.Ranks == 1 {
		_, err = trySaveShards(job.Path, 200, 3)
	} else {
		var part Part
		var shard Shard
		if shard, err = shardOf(contents(200), job.Rank, job.Ranks); err == nil {
			part, err = WriteShard(job.Path, job.Rank, job.Ranks, shard)
		}
		if err == nil {
			err = json.NewEncoder(os.Stdout).Encode(part)
		}
	}
	if err != nil {
		panic(err)
	}
}

// run starts the process and returns what it printed; killed reports whether it killed
// itself.
func (j rankJob) run(t *testing.T) (printed string, killed bool) {
	t.Helper()
	text, err := json.Marshal(j)
	require.NoError(t, err)
	process := exec.Command(os.Args[0])
	process.Env = append(os.Environ(), rankProcess+"="+string(text))
	out, err := process.Output()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		require.Empty(t, string(exit.Stderr), "failed instead of being killed")
		return string(out), true
	}
	require.NoError(t, err)
	return string(out), false
}

// Ranks in processes of their own write a checkpoint. If one of them is killed at any
// change to the disk, rank 0 names it and discards the folder.
func TestKilledRank(t *testing.T) {
	dir := t.TempDir()
	old := save(t, dir, 100)
	kills := 0
	for change := 0; ; change++ {
		finished := false
		for _, when := range []string{"before", "half", "after"} {
			s, err := BeginSharded(dir, 200, 3)
			require.NoError(t, err)
			var parts []Part
			for rank := range 3 {
				job := rankJob{Path: s.Partial(), Rank: rank, Ranks: 3}
				if rank == 1 {
					job.When, job.Change = when, change
				}
				printed, killed := job.run(t)
				if killed {
					kills++
					continue
				}
				var part Part
				require.NoError(t, json.Unmarshal([]byte(printed), &part))
				parts = append(parts, part)
			}
			path, err := s.Finish(parts, tiny, state{200, 1})
			if len(parts) == 3 {
				require.NoError(t, err)
				require.NoError(t, Verify(path))
				finished = true
				break
			}
			require.ErrorContains(t, err, "rank 1: its part is missing")
			require.Equal(t, []string{stepName(100)}, names(t, dir))
			require.NoError(t, Verify(old))
		}
		if finished {
			break
		}
	}
	t.Logf("%d kills", kills)
	require.Equal(t, 3*4, kills, "create, write, sync, sync of the folder")
}

// If rank 0 is killed at any change to the disk, the older checkpoint is intact, the new
// one is absent or intact, and the next save succeeds.
func TestKilledRank0(t *testing.T) {
	kills := 0
	for change := 0; ; change++ {
		dir := t.TempDir()
		old := save(t, dir, 100)
		job := rankJob{Path: dir, Ranks: 1, When: []string{"before", "half", "after"}[change%3], Change: change}
		if _, killed := job.run(t); !killed {
			break
		}
		kills++
		requireIntact(t, dir)
		require.NoError(t, Verify(old))
		if _, err := os.Stat(filepath.Join(dir, stepName(200))); err != nil {
			saveShards(t, dir, 200, 3)
		}
		_, err := Retain(dir, 9, 0)
		require.NoError(t, err)
		require.Equal(t, []string{stepName(100), stepName(200)}, names(t, dir))
		requireIntact(t, dir)
	}
	t.Logf("%d kills", kills)
	require.Greater(t, kills, 20)
}

// requireIntact requires that every folder with the name of a checkpoint is intact.
func requireIntact(t *testing.T, dir string) {
	t.Helper()
	for _, name := range names(t, dir) {
		if !strings.HasPrefix(name, ".") {
			c, err := Open(filepath.Join(dir, name))
			require.NoError(t, err)
			require.NoError(t, c.Close())
		}
	}
}

// After a power cut right after any change of a save, every folder with the name of a
// checkpoint is intact, the older one is there, and the next save succeeds.
func TestPowerCut(t *testing.T) {
	for layout, save := range savers {
		home, cuts := t.TempDir(), t.TempDir()
		d := powercut.New(home)
		var left []string
		saved := false // the older checkpoint
		restore := disk.Intercept(func(c disk.Change) error {
			err := errors.Join(c.Do(), d.Follow(c))
			for _, quick := range []bool{false, true} {
				if saved {
					cut := filepath.Join(cuts, fmt.Sprint(len(left)))
					left = append(left, filepath.Join(cut, Dir))
					err = errors.Join(err, d.Leave(cut, quick))
				}
			}
			return err
		})
		dir := filepath.Join(home, Dir)
		_, err := save(dir, 100)
		if saved = true; err == nil {
			_, err = save(dir, 200)
		}
		restore()
		require.NoError(t, err)
		require.Greater(t, len(left), 40, layout)
		complete := 0
		for _, dir := range left {
			requireIntact(t, dir)
			require.NoError(t, Verify(filepath.Join(dir, stepName(100))))
			if Verify(filepath.Join(dir, stepName(200))) == nil {
				complete++
			}
			_, err := save(dir, 300)
			require.NoError(t, err)
			_, err = Retain(dir, 9, 0)
			require.NoError(t, err)
			require.NotContains(t, strings.Join(names(t, dir), " "), partialMark)
		}
		require.Positive(t, complete)
		require.Less(t, complete, len(left)/4)
	}
}
