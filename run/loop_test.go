package run

import (
	"path/filepath"
	"runtime"
	runtimemetrics "runtime/metrics"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

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
	r, err := Start(t.Context(), Options{Config: c, Dir: filepath.Join(t.TempDir(), "run"), Backend: "emu", Threads: 1})
	require.NoError(t, err)
	started := objects()
	runtime.GC()
	require.Less(t, started-objects(), int64(1<<20))
	require.NoError(t, r.Close())
}
