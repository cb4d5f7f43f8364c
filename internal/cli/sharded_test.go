package cli

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/checkpoint"
)

// splitRows returns a rank's rows of tensors: a share of each matrix, and on rank 0
// everything else.
func splitRows(t *testing.T, from *checkpoint.Tensors, rank, ranks int) (part []checkpoint.Rows) {
	t.Helper()
	for _, x := range from.List() {
		r := checkpoint.Rows{Tensor: x}
		if len(x.Shape) > 1 {
			n := x.Shape[0]
			r.From, r.To = rank*n/ranks, (rank+1)*n/ranks
			raw := make([]byte, x.Elems()/int64(n)*int64(r.To-r.From)*int64(x.DType.Size()))
			require.NoError(t, from.ReadRows(x.Name, r.From, r.To, raw))
			r.Data = checkpoint.Bytes(raw)
		} else if r.To = 1; rank > 0 {
			continue
		} else if len(x.Shape) == 1 {
			r.To = x.Shape[0]
		}
		part = append(part, r)
	}
	return part
}

// shardCheckpoint replaces a checkpoint by one with the same contents in shards.
func shardCheckpoint(t *testing.T, path string, ranks int) {
	t.Helper()
	aside := filepath.Join(t.TempDir(), filepath.Base(path))
	require.NoError(t, os.Rename(path, aside))
	c, err := checkpoint.Open(aside)
	require.NoError(t, err)
	step, ok := checkpoint.StepOf(path)
	require.True(t, ok)
	s, err := checkpoint.BeginSharded(filepath.Dir(path), step, ranks)
	require.NoError(t, err)
	var parts []checkpoint.Part
	for rank := range ranks {
		part, err := checkpoint.WriteShard(s.Partial(), rank, ranks, checkpoint.Shard{
			Model: splitRows(t, c.Model, rank, ranks), Optimizer: splitRows(t, c.Optimizer, rank, ranks),
		})
		require.NoError(t, err)
		parts = append(parts, part)
	}
	sharded, err := s.Finish(parts, c.Config, c.State)
	require.NoError(t, err)
	require.Equal(t, path, sharded)
	require.NoError(t, c.Close())
}

// Every command gives the same on a checkpoint in shards as on a whole one, byte for byte.
func TestCommandsOnShards(t *testing.T) {
	text := corpus(t, 20_000)
	for recipe, all := range map[string][]int{"fp8-paper": {1, 2, 3, 5}, "fp8-smooth": {3}, "bf16": {2}} {
		whole := filepath.Join(t.TempDir(), "run")
		succeed(t, trainArgs(text, whole, 6, "--recipe", recipe, "checkpoint.every=3", "checkpoint.keep_last=9", "data.val_bytes=500")...)
		want := usesOf(t, text, whole)
		for _, ranks := range all {
			dir := filepath.Join(t.TempDir(), "run")
			require.NoError(t, os.CopyFS(dir, os.DirFS(whole)))
			third, last := filepath.Join(dir, "checkpoints", "step-00000003"), filepath.Join(dir, "checkpoints", "step-00000006")
			shardCheckpoint(t, third, ranks)
			shardCheckpoint(t, last, ranks)
			require.Len(t, names(t, last), ranks+3)
			for use, text := range usesOf(t, text, dir) {
				require.True(t, strings.ReplaceAll(want[use], whole, dir) == text, "%s of %d shards, recipe %s:\n%.300q", use, ranks, recipe, text)
			}
			same, _ := succeed(t, "diff", whole, dir)
			require.NotContains(t, same, "differ")

			// A resume takes the newest intact checkpoint.
			shard := filepath.Join(last, fmt.Sprintf("shard-%05d-of-%05d.safetensors", ranks-1, ranks))
			content := []byte(read(t, shard))
			content[len(content)-1] ^= 1
			require.NoError(t, os.WriteFile(shard, content, 0o600))
			_, stderr := succeed(t, "train", "--resume", "--out", dir)
			require.Contains(t, stderr, "skipped a damaged checkpoint: "+last+": "+shard+": its bytes have changed")
			require.Contains(t, stderr, "\nresuming after step 3\n")
			sameRun(t, whole, dir)
		}
	}
}

// usesOf returns the results of commands that read the newest checkpoint of a run, by
// command.
func usesOf(t *testing.T, text, dir string) map[string]string {
	t.Helper()
	uses := map[string]string{}
	path := filepath.Join(dir, "checkpoints", "step-00000006")
	for _, args := range [][]string{
		{"inspect", dir, "--all"},
		{"inspect", path, "--json"},
		{"eval", dir, "--json"},
		{"eval", path, "--data", text, "--recipe", "fp32", "--json"},
		{"generate", dir, "--prompt", "the", "--tokens", "20", "--seed", "1"},
	} {
		out, _ := succeed(t, args...)
		uses[strings.Join(append(args[:1:1], args[2:]...), " ")] = out
	}
	for _, format := range []string{"fp32", "bf16", "fp8"} {
		out := filepath.Join(t.TempDir(), "out")
		if status, _, stderr := octet("export", dir, "--out", out, "--format", format); status != 0 {
			uses["export "+format] = stderr
			continue
		}
		for _, name := range names(t, out) {
			uses["export "+format+" "+name] = read(t, out, name)
		}
	}
	on := filepath.Join(t.TempDir(), "on")
	succeed(t, trainArgs(text, on, 2, "model.init="+path)...)
	uses["model.init"] = read(t, on, "metrics.jsonl")
	return uses
}
