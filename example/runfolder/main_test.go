package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/run"
)

// The second call resumes after step 10, and the model learns.
func TestTrainTwice(t *testing.T) {
	text, dir := filepath.Join(t.TempDir(), "text.txt"), filepath.Join(t.TempDir(), "run")
	require.NoError(t, os.WriteFile(text, []byte(strings.Repeat("the quick brown fox ", 1000)), 0o600))
	var out strings.Builder
	require.NoError(t, trainTwice(&out, dir, text))
	steps := regexp.MustCompile(`(?m)^step (\d+) of (\d+): loss (\d\.\d{4})$`).FindAllStringSubmatch(out.String(), -1)
	require.Len(t, steps, 20, out.String())
	require.Equal(t, []string{"10", "10"}, steps[9][1:3])
	require.Equal(t, []string{"11", "20"}, steps[10][1:3])
	require.Less(t, steps[19][3], steps[0][3])
	c, err := run.ConfigOf(dir)
	require.NoError(t, err)
	require.Equal(t, "first-in-bf16", c.Recipe)
	require.FileExists(t, filepath.Join(dir, "first-in-bf16.toml"))
}
