package cli

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// A damaged model is refused by every command that would use it, in one sentence
// that names the file.
func TestDamagedModel(t *testing.T) {
	text := corpus(t, 20_000)
	dir := filepath.Join(t.TempDir(), "run")
	succeed(t, trainArgs(text, dir, 2)...)
	checkpoint := filepath.Join(dir, "checkpoints", "step-00000002")
	model := filepath.Join(checkpoint, "model.safetensors")
	config := filepath.Join(checkpoint, "config.json")
	manifest := filepath.Join(checkpoint, "MANIFEST.json")
	for _, damage := range []struct {
		file, want string
		do         func(content string) error
	}{
		{model, "model.safetensors: its bytes have changed", func(content string) error {
			return os.WriteFile(model, []byte(content[:5000]+"\x00"+content[5001:]), 0o600)
		}},
		{model, "model.safetensors: 5000 bytes, the manifest says", func(content string) error {
			return os.WriteFile(model, []byte(content[:5000]), 0o600)
		}},
		{config, "config.json: missing", func(string) error { return os.Remove(config) }},
		{manifest, "MANIFEST.json", func(string) error { return os.Remove(manifest) }},
	} {
		content := read(t, damage.file)
		require.NoError(t, damage.do(content))
		fresh := filepath.Join(t.TempDir(), "fresh")
		for _, args := range [][]string{
			{"eval", checkpoint},
			{"eval", dir},
			{"generate", checkpoint, "--prompt", "the "},
			{"generate", dir, "--prompt", "the "},
			{"export", checkpoint, "--out", fresh},
			{"inspect", checkpoint},
			{"inspect", dir},
			trainArgs(text, fresh, 2, "model.init="+checkpoint),
		} {
			status, stdout, stderr := octet(args...)
			require.Equal(t, exitInput, status, args)
			require.Empty(t, stdout)
			requireOneSentence(t, strings.TrimPrefix(stderr, firstLines(stderr))) // a slow start prints the announcement first
			require.Contains(t, stderr, damage.want, args)
			require.NoDirExists(t, fresh)
		}
		require.NoError(t, os.WriteFile(damage.file, []byte(content), 0o600))
	}
	succeed(t, "eval", checkpoint)
}

// Damage to a run's other files: if it changes the run, it stops a resume in one sentence
// that names the file, and nothing is changed. Damaged records are truncated or recreated.
func TestDamagedRun(t *testing.T) {
	text := corpus(t, 20_000)
	dir := filepath.Join(t.TempDir(), "run")
	succeed(t, trainArgs(text, dir, 4, "checkpoint.every=2")...)
	whole := t.TempDir()
	require.NoError(t, os.CopyFS(whole, os.DirFS(dir)))
	newest := filepath.Join("checkpoints", "step-00000004")
	for _, damage := range []struct {
		name string
		do   func(content string) string
		want string // empty: the run resumes
	}{
		{"config.toml", func(c string) string { return c[:len(c)/2] + "\x00" }, "config.toml"},
		{"config.toml", func(c string) string { return strings.Replace(c, "ffn = 48", "ffn = 64", 1) }, "step-00000002"},
		{"config.toml", func(c string) string { return strings.Replace(c, "seed = 1", "seed = 2", 1) }, "it belongs to a run with seed 1, but the configuration has seed 2"},
		{"data.json", func(c string) string { return c[:len(c)/2] }, "data.json: "},
		{"data.json", func(c string) string { return strings.Replace(c, `"sha256": "`, `"sha256": "0`, 1) }, "the corpus has changed"},
		{"data.json", nil, ""}, // written again
		{"metrics.jsonl", func(c string) string { return c[:len(c)-3] }, ""}, // a torn end
		{"metrics.jsonl", func(c string) string { return c + "\x00\x00\x00\x00" }, ""},
		{"metrics.jsonl", func(c string) string { return strings.Replace(c, `{"step":2`, "\x00\x00\x00", 1) }, "metrics.jsonl: line 2 is damaged"},
		{"timing.jsonl", func(c string) string { return strings.Replace(c, `{"step":1`, "", 1) }, "timing.jsonl: line 1 is damaged"},
		{"run.log", func(string) string { return "\x00" }, ""},
		{"run.log", nil, ""},
	} {
		file := filepath.Join(dir, damage.name)
		content := read(t, file)
		if damage.do == nil {
			require.NoError(t, os.Remove(file))
		} else {
			damaged := damage.do(content)
			require.NotEqual(t, content, damaged)
			require.NoError(t, os.WriteFile(file, []byte(damaged), 0o600))
		}
		require.NoError(t, os.RemoveAll(filepath.Join(dir, newest))) // so that there is something to do
		status, _, stderr := octet("train", "--resume", "--out", dir)
		if damage.want != "" {
			require.Equal(t, exitInput, status, damage.want)
			require.Contains(t, stderr, damage.want)
			require.NoDirExists(t, filepath.Join(dir, newest))
			require.NoError(t, os.WriteFile(file, []byte(content), 0o600))
			continue
		}
		require.Zero(t, status, stderr)
		if damage.name == "metrics.jsonl" || damage.name == "data.json" {
			require.Equal(t, read(t, whole, damage.name), read(t, dir, damage.name))
		}
		require.NotContains(t, stderr, "lost")
		require.Equal(t, read(t, whole, newest, "MANIFEST.json"), read(t, dir, newest, "MANIFEST.json"))
	}

	// Lines of steps before the checkpoint cannot be restored; the resume says so.
	require.NoError(t, os.RemoveAll(filepath.Join(dir, newest)))
	first, _, _ := strings.Cut(read(t, whole, "metrics.jsonl"), "\n")
	require.NoError(t, os.WriteFile(filepath.Join(dir, "metrics.jsonl"), []byte(first+"\n"), 0o600))
	require.NoError(t, os.Remove(filepath.Join(dir, "timing.jsonl")))
	_, stderr := succeed(t, "train", "--resume", "--out", dir)
	require.Contains(t, stderr, "metrics.jsonl ends at step 1: the lines up to step 2 are lost\n")
	require.Contains(t, stderr, "timing.jsonl ends at step 0: the lines up to step 2 are lost\n")
	require.Contains(t, read(t, dir, "run.log"), "metrics.jsonl ends at step 1")
}
