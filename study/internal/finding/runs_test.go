package finding

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// A sweep must have every variant that a study reads, with all seeds.
func TestSweep(t *testing.T) {
	dir := t.TempDir()
	manifest := ""
	for name, seeds := range map[string]int{"whole": Seeds, "short": 1} {
		list := ""
		for seed := range seeds {
			list += fmt.Sprintf("%d,", seed)
			at := filepath.Join(dir, "runs", name, fmt.Sprintf("seed-%d", seed))
			require.NoError(t, os.MkdirAll(at, 0o700))
			require.NoError(t, os.WriteFile(filepath.Join(at, "config.toml"), []byte("[train]\nsteps = 1\n"), 0o600))
			require.NoError(t, os.WriteFile(filepath.Join(at, "metrics.jsonl"), []byte("{\"step\":1,\"loss\":2}\n"), 0o600))
		}
		manifest += fmt.Sprintf("[[variants]]\nname = %q\nfolder = %[1]q\nseeds = [%s]\n", name, list)
	}
	require.NoError(t, os.WriteFile(filepath.Join(dir, "sweep.toml"), []byte(manifest), 0o600))
	byName, err := Sweep(dir, "x.toml", "whole")
	require.NoError(t, err)
	require.Len(t, byName["whole"], Seeds)
	for _, name := range []string{"short", "absent"} {
		_, err := Sweep(dir, "x.toml", "whole", name)
		require.ErrorContains(t, err, fmt.Sprintf("%q, not 5: it is not a sweep of x.toml", name))
	}
}

func TestDifferences(t *testing.T) {
	require.InDeltaSlice(t, []float64{100, -50}, Above([]float64{4, 1}, []float64{2, 2}), 1e-12)
	require.Equal(t, []float64{1, 2}, Abs([]float64{-1, 2}))
}
