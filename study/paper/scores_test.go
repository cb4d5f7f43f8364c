package main

import (
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/internal/runs"
	"octet/run"
)

// A run is scored once, and again for other task files or after more training.
func TestScoreOf(t *testing.T) {
	dir := t.TempDir()
	text := filepath.Join(dir, "text.txt")
	require.NoError(t, os.WriteFile(text, []byte(strings.Repeat("the quick brown fox ", 1000)), 0o600))
	c, err := run.NewConfig("", "recipe=fp8-smooth", "train.steps=60", "data.paths="+text, "data.seq=32", "train.micro_batch=2", "data.val_bytes=500",
		"model.layers=1", "model.dim=32", "model.heads=2", "model.kv_heads=1", "model.ffn=48")
	require.NoError(t, err)
	r, err := run.Start(t.Context(), run.Options{Config: c, Dir: filepath.Join(dir, "run"), Backend: "emu", Threads: 1})
	require.NoError(t, err)
	require.NoError(t, r.Train(t.Context(), func(run.Progress) {}))
	require.NoError(t, r.Close())
	trained, err := runs.Open(filepath.Join(dir, "run"))
	require.NoError(t, err)

	for name, lines := range map[string]string{
		"continuation": `{"octet_task":1,"kind":"choice","name":"continuation","delimiter":""}
{"context":"the quick brown","choices":[" zebra"," fox"],"gold":1}
{"context":"fox the quick","choices":[" brown"," fnord"],"gold":1}
`,
		"lastword": `{"octet_task":1,"kind":"cloze","name":"lastword","delimiter":""}
{"context":"the quick brown fox the ","target":"quick"}
`,
	} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name+".jsonl"), []byte(lines), 0o600))
	}
	files, sum, err := readTasks(dir)
	require.NoError(t, err)
	stored := filepath.Join(dir, "scores", "one.json")
	first, err := scoreOf(t.Context(), trained, stored, files, sum, 1)
	require.NoError(t, err)
	loss, _ := trained.Metrics["val_loss"].Last()
	require.Equal(t, loss, first.ValLoss)
	require.Equal(t, 0.5, first.Metrics["continuation acc"], "the second document's gold is not the text's")
	require.Greater(t, math.Log(first.Metrics["lastword perplexity"]), 0.0)

	edited, err := os.ReadFile(stored)
	require.NoError(t, err)
	edited = []byte(strings.Replace(string(edited), `"continuation acc": 0.5`, `"continuation acc": 0.25`, 1))
	require.NoError(t, os.WriteFile(stored, edited, 0o600))
	again, err := scoreOf(t.Context(), trained, stored, files, sum, 1)
	require.NoError(t, err)
	require.Equal(t, 0.25, again.Metrics["continuation acc"], "the stored score is used")
	other, err := scoreOf(t.Context(), trained, stored, files, "other", 1)
	require.NoError(t, err)
	require.Equal(t, first.Metrics, other.Metrics)

	trained.Steps++
	_, err = scoreOf(t.Context(), trained, stored, files, sum, 1)
	require.ErrorContains(t, err, "is not done")
}
