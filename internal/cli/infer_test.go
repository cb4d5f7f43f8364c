package cli

import (
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestEval(t *testing.T) {
	text := corpus(t, 20_000)
	dir := filepath.Join(t.TempDir(), "run")
	succeed(t, trainArgs(text, dir, 20)...)
	eval := func(args ...string) (e evaluated) {
		t.Helper()
		out, _ := succeed(t, append([]string{"eval", "--json"}, args...)...)
		require.Equal(t, 1, strings.Count(out, "\n"))
		require.NoError(t, json.Unmarshal([]byte(out), &e))
		require.InDelta(t, float64(e.Loss)/math.Ln2, float64(*e.BitsPerByte), 1e-12)
		require.InDelta(t, math.Exp(float64(e.Loss)), float64(e.Perplexity), 1e-9)
		return e
	}
	newest := filepath.Join(dir, "checkpoints", "step-00000020")
	own := eval(dir)
	require.Equal(t, newest, own.Path)
	require.Equal(t, "fp8-smooth", own.Recipe)
	require.EqualValues(t, 1999, own.Tokens)
	// The run found the same loss.
	metrics := strings.Split(strings.TrimSpace(read(t, dir, "metrics.jsonl")), "\n")
	var last struct {
		ValLoss float64 `json:"val_loss"`
	}
	require.NoError(t, json.Unmarshal([]byte(metrics[19]), &last))
	require.InDelta(t, last.ValLoss, float64(own.Loss), 1e-6)

	require.Equal(t, own, eval(newest, "--threads", "1"))
	exact := eval(dir, "--recipe", "fp32")
	require.Equal(t, "fp32", exact.Recipe)
	require.NotEqual(t, own.Loss, exact.Loss)
	require.InDelta(t, float64(own.Loss), float64(exact.Loss), 0.05)
	whole := eval(dir, "--data", text)
	require.EqualValues(t, 19_999, whole.Tokens)

	// The run has no scales of another recipe: they are measured.
	require.Zero(t, own.Calibrated)
	for _, recipe := range []string{"nvfp4", "nvfp4-plain", "int8-switchback"} {
		other := eval(dir, "--recipe", recipe, "--data", text)
		require.InDelta(t, float64(whole.Loss), float64(other.Loss), 0.05, recipe)
		if recipe != "nvfp4" { // whose BF16 layers are all of this model
			require.EqualValues(t, 16*2*32, other.Calibrated, recipe)
		}
	}
	table, _ := succeed(t, "eval", dir, "--recipe", "nvfp4-plain")
	require.Contains(t, table, "measured on 1,024 tokens of the data's training part\n")
	table, _ = succeed(t, "eval", dir, "--recipe", "nvfp4-plain", "--data", text)
	require.Contains(t, table, "measured on 1,024 tokens of --data\n")
	status, _, stderr := octet("generate", dir, "--prompt", "x", "--recipe", "nvfp4-plain")
	require.Equal(t, exitInput, status)
	require.Contains(t, stderr, "recipe nvfp4-plain needs saved scales")

	// Evaluation does not use a batch size that only fits a larger machine.
	config := read(t, dir, "config.toml")
	larger := strings.Replace(config, "micro_batch = 2 ", "micro_batch = 16000000 ", 1)
	require.NotEqual(t, config, larger)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "config.toml"), []byte(larger), 0o600))
	require.InDelta(t, float64(own.Loss), float64(eval(dir).Loss), 1e-6)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "config.toml"), []byte(config), 0o600))

	table, stderr = succeed(t, "eval", dir)
	require.Empty(t, stderr)
	for _, row := range []string{"checkpoint ", "recipe ", "tokens ", "loss ", "perplexity ", "bits per byte "} {
		require.Contains(t, table, row)
	}
	for _, test := range []struct {
		want string
		args []string
	}{
		{"no such run, checkpoint or model folder", []string{filepath.Join(dir, "none")}},
		{"no such run, checkpoint or model folder", []string{filepath.Join(dir, "config.toml")}},
		{"does not exist", []string{dir, "--data", "none"}},
		{"unknown recipe", []string{dir, "--recipe", "fp7"}},
		{"--seq", []string{dir, "--seq", "-1"}},
		{"too few to evaluate in windows of 100000: give more text with --data, or a smaller --seq", []string{dir, "--seq", "100000"}},
		{"unknown backend", []string{dir, "--backend", "tpu"}},
		{"--threads", []string{dir, "--threads", "70000"}},
		{"no config.json", []string{t.TempDir()}},
		{"run or checkpoint", nil},
	} {
		status, out, stderr := octet(append([]string{"eval"}, test.args...)...)
		require.Equal(t, exitInput, status, test.args)
		require.Empty(t, out)
		requireOneSentence(t, stderr)
		require.Contains(t, stderr, test.want)
	}
}

func TestGenerate(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "run")
	succeed(t, trainArgs(corpus(t, 20_000), dir, 20)...)
	generate := func(args ...string) string {
		t.Helper()
		out, stderr := succeed(t, append([]string{"generate", dir, "--prompt", "the ", "--tokens", "40"}, args...)...)
		require.Empty(t, stderr)
		require.True(t, strings.HasPrefix(out, "the ") && strings.HasSuffix(out, "\n"))
		return out
	}
	one := generate("--seed", "1")
	require.Equal(t, one, generate())
	require.Equal(t, one, generate("--threads", "1"))
	require.NotEqual(t, one, generate("--seed", "2"))
	require.Equal(t, generate("--temperature", "0"), generate("--temperature", "0", "--seed", "5"))
	require.NotEqual(t, one, generate("--temperature", "0"))
	require.Equal(t, generate("--temperature", "0"), generate("--top-p", "1e-9"))
	require.Len(t, generate("--recipe", "fp32"), 4+40+1)

	for _, test := range []struct {
		want string
		args []string
	}{
		{"--temperature -1: expected 0 or more", []string{dir, "--prompt=x", "--temperature=-1"}},
		{"--top-p 0: expected more than 0, at most 1", []string{dir, "--prompt=x", "--top-p=0"}},
		{"--top-p", []string{dir, "--prompt=x", "--top-p=nan"}},
		{"--tokens 0", []string{dir, "--prompt=x", "--tokens=0"}},
		{"--prompt is empty", []string{dir, "--prompt="}},
		{"--prompt", []string{dir}},
		{"no such run", []string{"none", "--prompt=x"}},
		{"there is no text to continue", []string{dir}},
		{"both name text to continue", []string{dir, "--prompt=x", "--prompts=x"}},
		{"--batch -1", []string{dir, "--prompt=x", "--batch=-1"}},
		{"--kv bf16: expected e4m3 or e5m2", []string{dir, "--prompt=x", "--kv=bf16"}},
		{"--stop is empty", []string{dir, "--prompt=x", "--stop="}},
		{"none.jsonl", []string{dir, "--prompts=none.jsonl"}},
		{"unknown recipe", []string{dir, "--prompt=x", "--recipe=fp7"}},
		{"needs saved scales", []string{filepath.Join(dir, "hf"), "--prompt=x", "--recipe=fp8-delayed"}},
	} {
		if strings.HasSuffix(test.args[0], "hf") {
			bareWeights(t, dir, test.args[0])
			out, _ := succeed(t, "generate", test.args[0], "--prompt=the ", "--tokens=40", "--temperature=0")
			require.Equal(t, generate("--temperature", "0", "--recipe", "fp32"), out)
		}
		status, out, stderr := octet(append([]string{"generate"}, test.args...)...)
		require.Equal(t, exitInput, status, "%v %s", test.args, stderr)
		require.Empty(t, out)
		requireOneSentence(t, stderr)
		require.Contains(t, stderr, test.want)
	}
}

// Prompts of a file are continued in batches, each as alone, up to a stop text.
func TestGenerateBatches(t *testing.T) {
	text, dir := corpus(t, 20_000), filepath.Join(t.TempDir(), "run")
	succeed(t, trainArgs(text, dir, 40)...)
	file := filepath.Join(t.TempDir(), "prompts.jsonl")
	write := func(lines string) { require.NoError(t, os.WriteFile(file, []byte(lines), 0o600)) }
	prompts := []string{"the ", "a <b> \"c\" and more", "\u00e9"}
	write(`"the "` + "\n\n" + `{"prompt": "a <b> \"c\" and more", "id": 3}` + "\n" + `"\u00e9"` + "\n")
	greedy := []string{"--tokens=30", "--temperature=0"}
	for _, batch := range []string{"1", "2", "8"} {
		out, _ := succeed(t, append([]string{"generate", dir, "--prompts", file, "--batch", batch}, greedy...)...)
		lines := strings.Split(strings.TrimSpace(out), "\n")
		require.Len(t, lines, 3)
		for i, line := range lines {
			var got continuation
			require.NoError(t, json.Unmarshal([]byte(line), &got))
			require.Equal(t, prompts[i], got.Prompt)
			alone, _ := succeed(t, append([]string{"generate", dir, "--prompt", prompts[i]}, greedy...)...)
			require.Equal(t, strings.ToValidUTF8(alone, "\ufffd"), got.Prompt+got.Text+"\n")
		}
	}
	whole, _ := succeed(t, append([]string{"generate", dir, "--prompt", "the "}, greedy...)...)
	eight, _ := succeed(t, append([]string{"generate", dir, "--prompt", "the ", "--kv", "e4m3"}, greedy...)...)
	require.Len(t, eight, len(whole))
	stop := strings.TrimPrefix(whole, "the ")[10:12]
	out, _ := succeed(t, append([]string{"generate", dir, "--prompt", "the ", "--stop", stop, "--stop", "###"}, greedy...)...)
	before, _, _ := strings.Cut(strings.TrimPrefix(whole, "the "), stop)
	require.Equal(t, "the "+before+"\n", out)
	for lines, want := range map[string]string{
		"\"a\"\n{\"text\": 1}": "line 2: the object has no field prompt", "[1]": "line 1: ", "\"\"": "line 1: the prompt is empty", "": "has no prompts",
	} {
		write(lines)
		status, _, stderr := octet("generate", dir, "--prompts", file)
		require.Equal(t, exitInput, status)
		requireOneSentence(t, stderr)
		require.Contains(t, stderr, want)
	}
}

// bareWeights copies the model of a run's checkpoint, as a Hugging Face folder.
func bareWeights(t *testing.T, run, to string) {
	t.Helper()
	require.NoError(t, os.Mkdir(to, 0o700))
	for _, name := range []string{"config.json", "model.safetensors"} {
		content := read(t, run, "checkpoints", "step-00000020", name)
		require.NoError(t, os.WriteFile(filepath.Join(to, name), []byte(content), 0o600))
	}
}
