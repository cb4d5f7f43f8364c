package cli

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/tokenizer"
)

// From JSON lines to a trained, evaluated and exported model of subwords: its tokenizer goes along, with
// one rank and with two, and data of another tokenizer is refused.
func TestSubwords(t *testing.T) {
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	var lines strings.Builder
	for i := range 300 {
		fmt.Fprintf(&lines, "{\"text\": \"line %d of the text, which says that %d is a number\"}\n", i, i*i%97)
	}
	require.NoError(t, os.WriteFile(at("docs.jsonl"), []byte(lines.String()), 0o600))
	other := corpus(t, 3000)
	for name, x := range map[string][2]string{"a": {at("docs.jsonl"), "320"}, "b": {at("docs.jsonl"), "330"}, "c": {other, "320"}} {
		succeed(t, "tokenizer", "train", x[0], "--vocab", x[1], "-o", at(name+".json"))
		succeed(t, "data", "prepare", at("docs.jsonl"), "--tokenizer", at(name+".json"), "--val", "0.2", "--out", at(name))
	}
	tok, err := tokenizer.OpenBundle(at("a"))
	require.NoError(t, err)
	for _, ranks := range []string{"1", "2"} {
		run := at("run" + ranks)
		args := trainArgs(at("a"), run, 4, "data.val_bytes=100000", "train.ranks="+ranks)
		succeed(t, args...)
		for _, folder := range []string{run, filepath.Join(run, "checkpoints", "step-00000004")} {
			b, err := tokenizer.OpenBundle(folder)
			require.NoError(t, err, folder)
			require.Equal(t, tok.Files, b.Files)
		}
		exported := at("hf" + ranks)
		succeed(t, "export", run, "--out", exported)
		b, err := tokenizer.OpenBundle(exported)
		require.NoError(t, err)
		require.Equal(t, tok.SHA256(), b.SHA256())
		require.Equal(t, tok.EndOfText, b.EndOfText)

		eval := func(args ...string) (e evaluated) {
			out, _ := succeed(t, append([]string{"eval", "--json"}, args...)...)
			require.NoError(t, json.Unmarshal([]byte(out), &e))
			return e
		}
		held := eval(run)
		require.Equal(t, held.Loss, eval(run, "--data", at("a")).Loss, "the held-out part")
		require.InEpsilon(t, float64(eval(run, "--recipe", "fp32").Loss), float64(eval(exported, "--data", at("a"), "--seq", "32").Loss), 1e-5)
		require.NotNil(t, held.BitsPerByte)
		out, _ := succeed(t, "generate", run, "--prompt", "line 7", "--tokens", "5")
		require.True(t, strings.HasPrefix(out, "line 7"))
	}
	checkpoint := filepath.Join(at("run1"), "checkpoints", "step-00000004")
	for _, test := range []struct {
		want string
		args []string
	}{
		{"with the tokenizer of the model", []string{"eval", at("run1"), "--data", at("b")}},
		{"another tokenizer than", []string{"eval", at("run1"), "--data", at("c")}},
		{"octet data prepare", []string{"eval", at("run1"), "--data", other}},
		{"has another tokenizer than the data", trainArgs(at("c"), at("x"), 1, "model.init="+checkpoint)},
		{"or prepare the data with the tokenizer of the model", trainArgs(at("b"), at("x"), 1, "model.init="+checkpoint)},
		{"has another tokenizer than the data", trainArgs(other, at("x"), 1, "model.init="+checkpoint)},
		{"name one of its checkpoints", trainArgs(at("a"), at("x"), 1, "model.init="+at("run1"))},
	} {
		status, _, stderr := octet(test.args...)
		require.Equal(t, exitInput, status, "%v %s", test.args, stderr)
		require.Contains(t, strings.Join(strings.Fields(stderr), " "), test.want)
	}
}
