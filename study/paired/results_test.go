package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// A later call finds the results of whole lines and continues after them.
func TestResultsGoOn(t *testing.T) {
	file := filepath.Join(t.TempDir(), "results.jsonl")
	one, two := runName{"bf16", 1, 250, "abc", 100}, runName{"bf16", 2, 250, "abc", 100}
	want := result{Train: []float64{5.5, 1.0 / 3}, Val: 2.25}
	store := func(n runName) {
		f, err := openResults(file)
		require.NoError(t, err)
		require.NoError(t, f.add(n, want))
		require.NoError(t, f.close())
	}
	store(one)
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(file, append(text, text[:20]...), 0o644))
	store(two)

	f, err := openResults(file)
	require.NoError(t, err)
	for _, n := range []runName{one, two} {
		got, ok := f.lookup(n)
		require.True(t, ok)
		require.Equal(t, want, got)
	}
	longer := one
	longer.Steps = 500
	_, ok := f.lookup(longer)
	require.False(t, ok)
	require.NoError(t, f.close())

	require.NoError(t, os.WriteFile(file, append(text, "{]\n"...), 0o644))
	_, err = openResults(file)
	require.ErrorContains(t, err, "results.jsonl: byte ")
}
