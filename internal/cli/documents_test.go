package cli

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/data"
)

// octet eval has the attention of the run: the loss is that of the run's own evaluation.
// Shards, whose documents cannot be told apart, are refused.
func TestDocuments(t *testing.T) {
	text := t.TempDir()
	for i := range 60 { // a zero byte ends each
		require.NoError(t, os.WriteFile(filepath.Join(text, fmt.Sprintf("%02d.txt", i)), []byte(goText(5000)[50*i:][:50+i]), 0o600))
	}
	dir := filepath.Join(t.TempDir(), "run")
	succeed(t, trainArgs(text, dir, 5, "data.attention=document", "data.val_bytes=400")...)
	var last struct {
		ValLoss float64 `json:"val_loss"`
	}
	metrics := strings.Split(strings.TrimSpace(read(t, dir, "metrics.jsonl")), "\n")
	require.NoError(t, json.Unmarshal([]byte(metrics[4]), &last))
	loss := func(args ...string) float64 {
		out, _ := succeed(t, append([]string{"eval", dir, "--json"}, args...)...)
		var e evaluated
		require.NoError(t, json.Unmarshal([]byte(out), &e))
		return float64(e.Loss)
	}
	require.InDelta(t, last.ValLoss, loss(), 1e-6)
	ladder, _ := succeed(t, "eval", dir, "--quant", "w4a16-g32-rtn", "--recipe", "fp32", "--json")
	var e evaluated
	require.NoError(t, json.Unmarshal([]byte(ladder), &e))
	require.InDelta(t, loss("--recipe", "fp32"), float64(e.Loss), 1e-6)

	// Without its key in config.toml the run would be evaluated as a causal one.
	path := filepath.Join(dir, "config.toml")
	causal := strings.Replace(read(t, path), `attention = "document"`, `attention = "causal"`, 1)
	require.NoError(t, os.WriteFile(path, []byte(causal), 0o600))
	require.NotEqual(t, last.ValLoss, loss())
	require.NoError(t, os.WriteFile(path, []byte(strings.Replace(causal, `"causal"`, `"document"`, 1)), 0o600))

	shards := filepath.Join(t.TempDir(), "train.bin")
	f, err := os.Create(shards)
	require.NoError(t, err)
	require.NoError(t, data.WriteShard(f, make([]uint16, 3000)))
	require.NoError(t, f.Close())
	for _, args := range [][]string{
		trainArgs(shards, filepath.Join(t.TempDir(), "run"), 2, "data.attention=document"),
		{"eval", dir, "--data", shards},
	} {
		status, stdout, stderr := octet(args...)
		require.Equal(t, 2, status, "%v\n%s", args, stderr)
		require.Empty(t, stdout)
		require.Contains(t, stderr, `data.attention = "document" needs the token that ends a document, which shards without a tokenizer do not record`)
	}
}
