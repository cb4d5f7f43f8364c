package run

import (
	"path/filepath"
	"runtime"
	runtimemetrics "runtime/metrics"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"octet/backend"
	"octet/data"
	"octet/train"
)

func TestEstimate(t *testing.T) {
	c := train.Default()
	c.Model.Layers, c.Train.Steps = 1, 100
	require.NoError(t, c.Resolve())
	estimate := func(c train.Config, name string) (time.Duration, bool) {
		t.Helper()
		spec, err := backend.SpecOf(name)
		require.NoError(t, err)
		job, err := train.NewJob(c, spec)
		require.NoError(t, err)
		r := &Run{Config: c, Corpus: &data.Corpus{}, folder: &folder{Dir: t.TempDir()}, backend: name}
		d, ok, err := r.estimate(t.Context(), job)
		require.NoError(t, err)
		return d, ok
	}
	short, ok := estimate(c, "emu")
	require.True(t, ok)
	require.Positive(t, short)
	c.Train.Steps = 1_000_000
	long, _ := estimate(c, "emu")
	require.Greater(t, long, 10*short)
	// The miniature has one layer; with an exception for it, no layer is smoothed.
	exception := c
	exception.Model.Layers = 2
	exception.Precision.Rows = []train.PrecisionRow{{Scope: "layers.0.mlp.*", Format: "bf16"}}
	estimate(exception, "emu")
	// The miniature of a large model is small.
	c.Model.Dim, c.Model.Heads, c.Model.KVHeads, c.Model.FFN, c.Model.Vocab, c.Data.Seq = 4096, 32, 8, 8192, 50304, 4000
	long, _ = estimate(c, "emu")
	require.Greater(t, long, time.Hour, "and more than a Duration holds")
}

// Start makes the quick checks before the estimate, which opens a second device.
func TestChecksComeBeforeTheEstimate(t *testing.T) {
	opened := 0
	emu, _, err := backend.Find("emu")
	require.NoError(t, err)
	emu.Name, emu.Rank = "emu-counted", emu.Rank-1
	openEmu := emu.Open
	emu.Open = func(device string, o backend.Options) ([]backend.Backend, error) {
		opened++
		return openEmu(device, o)
	}
	backend.Register(emu)
	reported := 0
	start := func(change func(*train.Config)) error {
		c := tinyConfig(t)
		c.Train.Steps = 1
		change(&c)
		require.NoError(t, c.Resolve())
		opened, reported = 0, 0
		r, err := Start(t.Context(), Options{
			Config: c, Dir: filepath.Join(t.TempDir(), "run"), Backend: "emu-counted", Threads: 1,
			Expect: func(time.Duration) { reported++ },
		})
		if err != nil {
			return err
		}
		return r.Close()
	}
	require.NoError(t, start(func(*train.Config) {}))
	require.Equal(t, []int{2, 1}, []int{opened, reported})
	for want, change := range map[string]func(*train.Config){
		"missing.txt": func(c *train.Config) { c.Data.Paths = []string{"missing.txt"} },
		"of memory":   func(c *train.Config) { c.Model.FFN, c.Train.MicroBatch = 1<<24, 1<<10 },
	} {
		require.ErrorContains(t, start(change), want)
		require.LessOrEqual(t, opened, 1, want)
		require.Zero(t, reported, want)
	}
}

// For an accelerator there is no estimate before the first steps.
func TestNoEstimateForAccelerators(t *testing.T) {
	c := tinyConfig(t)
	require.NoError(t, c.Resolve())
	job, err := train.NewJob(c, backend.Spec{Backend: "cuda"})
	require.NoError(t, err)
	_, ok, err := (&Run{Config: c, backend: "none"}).estimate(t.Context(), job)
	require.NoError(t, err)
	require.False(t, ok)
}

// The ETA ignores the time of the first step.
func TestETA(t *testing.T) {
	c := tinyConfig(t)
	c.Train.Steps = 5
	require.NoError(t, c.Resolve())
	r, err := Start(t.Context(), Options{Config: c, Dir: filepath.Join(t.TempDir(), "run"), Backend: "emu", Threads: 1})
	require.NoError(t, err)
	require.NoError(t, r.Train(t.Context(), func(p Progress) {
		switch p.Step {
		case 1:
			require.Nil(t, p.ETA)
		case 5:
			require.Zero(t, *p.ETA)
		default:
			require.Positive(t, *p.ETA)
		}
	}))
	r.Config.Train.Steps = 1_000
	require.Equal(t, 995*time.Second, *r.eta(4*time.Second, 4))
	require.NoError(t, r.Close())
}

// Start frees its garbage: steps allocate nothing, so no later collection would free it.
func TestStartLeavesNoGarbage(t *testing.T) {
	objects := func() int64 {
		s := []runtimemetrics.Sample{{Name: "/memory/classes/heap/objects:bytes"}}
		runtimemetrics.Read(s)
		return int64(s[0].Value.Uint64())
	}
	c := tinyConfig(t)
	c.Model.Vocab = 4096 // the embedding and the head alone have megabytes
	require.NoError(t, c.Resolve())
	r, err := Start(t.Context(), Options{
		Config: c, Dir: filepath.Join(t.TempDir(), "run"), Backend: "emu", Threads: 1,
		Expect: func(time.Duration) {},
	})
	require.NoError(t, err)
	started := objects()
	runtime.GC()
	require.Less(t, started-objects(), int64(1<<20))
	require.NoError(t, r.Close())
}
