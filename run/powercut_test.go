package run

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/checkpoint"
	"octet/internal/disk"
	"octet/internal/disk/powercut"
)

// After a power cut right after any change of a run to its folder, the run resumes and ends like
// one without a power cut. Before config.toml is on disk, no run remains.
func TestPowerCut(t *testing.T) {
	c := savingConfig(t)
	want := uninterrupted(t, c)
	home, cuts := t.TempDir(), t.TempDir()
	d := powercut.New(home)
	every := 13
	if os.Getenv("OCTET_LONG") != "" {
		every = 1
	}
	var mu sync.Mutex
	n, left := 0, []string(nil)
	restore := disk.Intercept(func(c disk.Change) error {
		mu.Lock()
		defer mu.Unlock()
		err := errors.Join(c.Do(), d.Follow(c))
		if n++; n%every == 0 || n < 5 { // the first ones are before config.toml
			for _, quick := range []bool{false, true} {
				cut := filepath.Join(cuts, fmt.Sprintf("%d-%t-%s-%s", n, quick, c.Op, filepath.Base(c.Path)))
				err = errors.Join(err, d.Leave(cut, quick))
				left = append(left, filepath.Join(cut, "run"))
			}
		}
		return err
	})
	err := tryTrain(t.Context(), c, filepath.Join(home, "run"), func(Progress) {})
	restore()
	require.NoError(t, err)
	begun := 0
	for _, dir := range left {
		if _, err := os.Stat(configPath(dir)); err != nil {
			require.NoDirExists(t, filepath.Join(dir, checkpoint.Dir))
			continue
		}
		begun++
		trainIn(t, c, dir, func(Progress) {})
		got := files(t, dir)
		for name, text := range want { // an additional checkpoint is fine: the last removal is not synced
			require.True(t, text == got[name], "%s of %s", name, dir)
		}
	}
	t.Logf("%d power cuts, %d after config.toml", len(left), begun)
	require.Positive(t, begun)
	require.Less(t, begun, len(left))
}
