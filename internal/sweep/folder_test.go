package sweep

import (
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/backend"
	_ "octet/backend/emu"
	"octet/internal/config"
	"octet/internal/writers"
)

func TestLastMetrics(t *testing.T) {
	name := filepath.Join(t.TempDir(), "metrics.jsonl")
	wide := fmt.Sprintf(`{"step":2,"loss":3,"fp8":"%s","val_loss":2.5}`, strings.Repeat("x", 300<<10))
	for text, want := range map[string][]float64{
		"":                              {0},
		`{"step":1,"loss":4}`:           {0}, // torn
		"{\"step\":1,\"loss\":4}\n":     {1, 4, math.NaN()},
		"{\"step\":1,\"loss\":null}\n":  {1, math.NaN(), math.NaN()},
		"nonsense\n":                    {0},
		"{\"loss\":1}\n":                {0},
		"{\"step\":1}\n" + wide + "\n":  {2, 3, 2.5},
		wide + "\n{\"step\":3":          {2, 3, 2.5},
		"{\"step\":1}\n\n":              {0},
		strings.Repeat("\x00", 100<<10): {0},
	} {
		require.NoError(t, os.WriteFile(name, []byte(text), 0o600))
		want = append(want, math.NaN(), math.NaN())
		step, loss, valLoss := lastMetrics(name)
		got := fmt.Sprint(float64(step), loss, valLoss)
		require.Equal(t, fmt.Sprint(want[0], want[1], want[2]), got, "%.40q", text)
	}
	step, _, _ := lastMetrics(filepath.Join(t.TempDir(), "none"))
	require.Zero(t, step)
}

// begin makes a run folder with a line of metrics.
func begin(t *testing.T, dir, config, metrics string) {
	t.Helper()
	require.NoError(t, os.MkdirAll(dir, 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "config.toml"), []byte(config), 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(dir, writers.MetricsFile), []byte(metrics), 0o600))
}

// A report reads the groups of a sweep that is not complete, in the order of the sweep file.
func TestGroups(t *testing.T) {
	dir, list, err := readVariants(t, small+"recipes = [\"bf16\", \"fp8-smooth\", \"fp8-delayed\"]\nseeds = [10, 9]\n[grid]\n\"optimizer.lr\" = [1e-3, 3e-3]\n")
	require.NoError(t, err)
	out := filepath.Join(dir, "out")
	require.NoError(t, os.Mkdir(out, 0o700))
	_, err = Groups(out)
	require.ErrorIs(t, err, fs.ErrNotExist)
	require.NoError(t, writeManifest(out, list))
	groups, err := Groups(out)
	require.NoError(t, err)
	require.Empty(t, groups)
	for i, seeds := range [][]int64{{10, 9}, nil, {9}, {10}, nil, nil} { // by variant
		for _, seed := range seeds {
			begin(t, filepath.Join(out, runFolder(list[i].Folder, seed)), fmt.Sprintf("seed = %d\n", seed), "{\"step\":1,\"val_loss\":2}\n")
		}
	}
	groups, err = Groups(out)
	require.NoError(t, err)
	var names []string
	for _, g := range groups {
		for _, r := range g.Runs {
			names = append(names, r.Name)
		}
	}
	require.Equal(t, []string{"bf16 lr=0.001, seed 10", "bf16 lr=0.001, seed 9", "fp8-smooth lr=0.001, seed 9", "fp8-smooth lr=0.003, seed 10"}, names)
	require.Equal(t, "fp8-smooth lr=0.001", groups[1].Name)
	require.Same(t, groups[0], groups[1].Baseline)
	require.Nil(t, groups[2].Baseline, "no run of bf16 lr=0.003 has begun")
}

// Complete refuses a sweep with a run that has not begun, or not ended, by its folder.
func TestComplete(t *testing.T) {
	dir, list, err := readVariants(t, small+"recipes = [\"bf16\", \"fp8-smooth\"]\nseeds = [1, 2]\n")
	require.NoError(t, err)
	dir = filepath.Join(dir, "out")
	_, err = Complete(dir)
	require.ErrorContains(t, err, "holds no sweep")
	require.NoError(t, os.Mkdir(dir, 0o700))
	require.NoError(t, writeManifest(dir, list))
	for _, v := range list {
		for _, seed := range v.Seeds {
			name := filepath.Join(dir, runFolder(v.Folder, seed))
			_, err := Complete(dir)
			require.ErrorContains(t, err, name+" is not done")
			begin(t, name, "[train]\nsteps = 2\n", "{\"step\":1,\"loss\":2}\n")
			_, err = Complete(dir)
			require.ErrorContains(t, err, name+" is not done")
			begin(t, name, "[train]\nsteps = 2\n", "{\"step\":1,\"loss\":2}\n{\"step\":2,\"loss\":2}\n")
		}
	}
	groups, err := Complete(dir)
	require.NoError(t, err)
	require.Len(t, groups, 2)
	require.Len(t, groups[0].Runs, 2)
}

func TestManifestRefuses(t *testing.T) {
	for text, want := range map[string]string{
		"variants = 1": "sweep.toml: ",
		"[[variants]]\nname = \"a\"\nfolder = \"../b\"":                                          `"../b" is damaged`,
		"[[variants]]\nname = \"a\"\nfolder = \"..\"":                                            `".." is damaged`,
		"[[variants]]\nname = \"a\"\nfolder = \"\"":                                              `"" is damaged`,
		"[[variants]]\nname = \"a\"\nfolder = \"a\"\n[[variants]]\nname = \"a\"\nfolder = \"b\"": "is damaged",
		strings.Repeat("[", 100):                                                                 "nest",
		strings.Repeat("#", maxManifest+1):                                                       "longer than",
	} {
		dir := t.TempDir()
		require.NoError(t, os.WriteFile(filepath.Join(dir, manifestFile), []byte(text), 0o600))
		_, err := Groups(dir)
		require.ErrorContains(t, err, want, "%.100s", text)
	}
}

func FuzzManifest(f *testing.F) {
	f.Add("[[variants]]\nname = \"a b\"\nfolder = \"a_b\"\nbackend = \"emu\"\nseeds = [1, -2]\n")
	f.Add("[[variants]]\nname = \"a\"\nfolder = \"..\"\n")
	f.Fuzz(func(t *testing.T, text string) {
		if config.CheckDepth(text) != nil {
			return
		}
		m, err := parseManifest(text)
		if err != nil {
			return
		}
		for _, e := range m.Variants {
			require.True(t, filepath.IsLocal(e.Folder))
			require.Equal(t, e.Folder, filepath.Base(e.Folder))
		}
	})
}

func TestLastError(t *testing.T) {
	log, err := os.Create(filepath.Join(t.TempDir(), "log"))
	require.NoError(t, err)
	defer log.Close()
	const before = "octet: an earlier error\n"
	for text, want := range map[string]string{
		"": fs.ErrInvalid.Error(),
		"octet: training\nstep 1\noctet: no loss is finite\n": "no loss is finite",
		"octet: one\n  two\n  three\n  four\n":                "one   two   three",
		"a\nb\nc\nd\n":                                        "b c d",
		"octet: x\npanic: y\n\ngoroutine 1\nmain.go\n":        "panic: y  goroutine 1",
		strings.Repeat("x", 10_000):                           strings.Repeat("x", maxErrorText),
		"\xff":                                                "?",
	} {
		require.NoError(t, log.Truncate(0))
		_, err := log.WriteAt([]byte(before+text), 0)
		require.NoError(t, err)
		require.Equal(t, want, lastError(log, int64(len(before)), fs.ErrInvalid))
	}
}

// newSweep returns a sweep whose runs have validation losses, by variant and seed.
func newSweep(losses map[string][]float64, order ...string) *Sweep {
	s := &Sweep{}
	var baseline *Variant
	for _, name := range order {
		v := &Variant{Name: name, Baseline: baseline, Seeds: []int64{1, 2, 3}}
		if baseline == nil {
			baseline = v
		}
		s.Variants = append(s.Variants, v)
		for i, seed := range v.Seeds {
			r := &Row{Variant: v, Seed: seed, State: Done, ValLoss: losses[name][i]}
			if r.ValLoss == 0 {
				r.State = Failed
			}
			s.rows = append(s.rows, r)
		}
	}
	return s
}

func TestSummaries(t *testing.T) {
	nan := math.NaN()
	s := newSweep(map[string][]float64{"a": {2, 4, 8}, "b": {2.02, 0, 8.24}, "c": {2, nan, 8}, "d": {0, 0, 0}}, "a", "b", "c", "d")
	list := s.Summaries()
	require.Equal(t, 14./3, list[0].Mean)
	require.Equal(t, 2., list[0].Min)
	require.Equal(t, 8., list[0].Max)
	require.Zero(t, list[0].Difference.N)

	b := list[1]
	require.Equal(t, 2, b.Done)
	require.Equal(t, 1, b.Failed)
	require.Equal(t, 2, b.Difference.N, "seed 2 has no partner")
	require.InDelta(t, 2, b.Difference.Mean, 1e-12) // 1 % and 3 %
	require.InDelta(t, 1, b.Difference.StdErr, 1e-12)
	require.InDelta(t, 1-2/math.Pi*math.Atan(2), b.Difference.P, 1e-12)

	require.True(t, math.IsNaN(list[2].Mean) && math.IsNaN(list[2].Max))
	require.True(t, math.IsNaN(list[2].Difference.Mean) && math.IsNaN(list[2].Difference.P))
	require.Equal(t, 3, list[3].Failed)
	require.Zero(t, list[3].Difference.N)
}

// Runs share numbered devices of one backend, one run on each.
func TestPlaces(t *testing.T) {
	remove := backend.Register(backend.Driver{
		Name: "pair",
		Spec: func(string) (backend.Spec, error) { return backend.Spec{Backend: "pair"}, nil },
		Open: func(string, backend.Options) (backend.Backend, error) { return nil, backend.ErrNoDevice },
	})
	defer remove()
	s := newSweep(map[string][]float64{"a": {1, 1, 1}, "b": {1, 1, 1}}, "a", "b")
	s.Variants[1].Backend = "emu:h100"
	for _, r := range s.rows {
		r.State = Pending
	}
	s.places = []string{"pair:0", "pair:1"}
	require.NoError(t, s.setPlaces())
	require.Equal(t, "pair", s.Variants[0].device)
	require.Equal(t, "emu:h100", s.Variants[1].device)
	s.setJobs(0, 0, true)
	require.Equal(t, 2, s.Jobs)
	s.setJobs(100, 0, true)
	require.Equal(t, 6, s.Jobs, "no more than runs")
	require.Equal(t, max(1, runtime.GOMAXPROCS(0)/6), s.Threads)
	for _, places := range [][]string{{"pair:0", "emu"}, {"pair", "pair:1"}, {"pair:1", "pair"}, {"emu:h100", "emu:h100"}} {
		s.places = places
		require.ErrorContains(t, s.setPlaces(), "only numbered devices of one backend")
	}
	s.places = []string{"pair:0", "pear:1"}
	require.ErrorContains(t, s.setPlaces(), `unknown backend "pear"`)
}
