package run

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/train"
)

// ConfigOf returns the configuration of a folder. Errors name what is wrong with it.
func TestConfigOf(t *testing.T) {
	folder := func(toml string) string {
		dir := t.TempDir()
		require.NoError(t, os.WriteFile(configPath(dir), []byte(toml), 0o600))
		return dir
	}
	c, err := ConfigOf(folder("[train]\nsteps = 7\n"))
	require.NoError(t, err)
	require.Equal(t, 7, c.Train.Steps)

	file := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	for _, test := range []struct {
		name, dir, want string
	}{
		{"no folder", filepath.Join(t.TempDir(), "absent"), "absent does not exist"},
		{"a file", file, "file is not a run folder"},
		{"a folder of something else", t.TempDir(), "is not a run folder: it has no config.toml"},
		{"no TOML", folder("steps 7"), "config.toml"},
		{"a value that cannot be", folder("[train]\nsteps = -7\n"), "train.steps"},
	} {
		c, err := ConfigOf(test.dir)
		require.ErrorContains(t, err, test.want, test.name)
		require.Zero(t, c, test.name)
	}
}

// changeOfRate reports a change of the learning rate only if the rate would not have changed
// as much with the old length.
func TestChangeOfRate(t *testing.T) {
	o := train.Optimizer{LR: 1, MinLR: 0.1, Warmup: 0.1}
	for _, test := range []struct {
		schedule            string
		done, before, steps int
		want                *RateChange
	}{
		{"wsd", 100, 100, 1000, &RateChange{false, 0.1, 1}},
		{"wsd", 50, 100, 1000, nil}, // the rate was not falling yet, and warms up again
		{"wsd", 50, 100, 200, nil},  // nor here
		{"constant", 100, 100, 200, nil},
		{"cosine", 100, 100, 100, nil}, // of the same length
		{"wsd", 50, 100, 80, nil},      // shorter, but the rate is not falling yet
		{"constant", 60, 100, 80, nil},
		{"constant", 4, 100, 50, &RateChange{true, 0.4, 1}}, // shorter, and warms up faster
		{"wsd", 79, 100, 80, &RateChange{true, 1, 0.1}},     // the last fifth is over
		{"cosine", 5, 100, 110, nil},                        // still in the warm-up
		{"cosine", 0, 100, 200, nil},                        // nothing is done
		{"cosine", 100, 100, 101, nil},                      // the last update also has the minimum rate
		{"cosine", 10, 100, 300, nil},                       // a longer warm-up, at a lower rate
	} {
		o.Schedule = test.schedule
		require.Equal(t, test.want, changeOfRate(o, test.done, test.before, test.steps), test)
	}
	o.Schedule = "cosine"
	for _, done := range []int{50, 100} {
		r := changeOfRate(o, done, 100, 200)
		require.NotNil(t, r)
		require.Equal(t, RateChange{false, o.LRAt(done-1, 100), o.LRAt(done, 200)}, *r)
		require.Greater(t, r.To, r.From)
	}
	require.Equal(t, &RateChange{true, o.LRAt(59, 100), o.LRAt(60, 80)}, changeOfRate(o, 60, 100, 80))
}
