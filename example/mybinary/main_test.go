package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/command"
)

// The command trains and resumes with the recipe by its name.
func TestTrain(t *testing.T) {
	require.NoError(t, register())
	text, dir := filepath.Join(t.TempDir(), "text.txt"), filepath.Join(t.TempDir(), "run")
	require.NoError(t, os.WriteFile(text, []byte(strings.Repeat("the quick brown fox ", 1000)), 0o600))
	arguments := []string{
		"mybinary", "train", "--recipe", "no-attention-fp8", "--backend", "emu", "--steps", "2", "--out", dir, "--data", text, "--json",
		"data.seq=32", "train.micro_batch=2", "model.layers=1", "model.dim=32", "model.heads=2", "model.kv_heads=1", "model.ffn=48",
	}
	require.Zero(t, command.Main(arguments, nil))
	c, err := os.ReadFile(filepath.Join(dir, "config.toml"))
	require.NoError(t, err)
	require.Contains(t, string(c), `recipe = "no-attention-fp8"`)
	require.Zero(t, command.Main([]string{"mybinary", "train", "--resume", "--backend", "emu", "--out", dir, "--steps", "3", "--json"}, nil))
	require.Equal(t, 2, command.Main([]string{"mybinary", "train", "--dry-run", "--recipe", "no-attention-fp9"}, nil))
}
