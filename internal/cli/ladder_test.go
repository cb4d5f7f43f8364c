package cli

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestEvalQuant(t *testing.T) {
	text := corpus(t, 20_000)
	dir := filepath.Join(t.TempDir(), "run")
	succeed(t, trainArgs(text, dir, 20)...)
	out, stderr := succeed(t, "eval", dir, "--json", "--quant", "w8a8-int8-smooth,w4a16-g32,w2a16-g128-rtn", "--recipe", "fp32")
	require.Empty(t, stderr)
	var e, plain evaluated
	require.NoError(t, json.Unmarshal([]byte(out), &e))
	out, _ = succeed(t, "eval", dir, "--json", "--recipe", "fp32")
	require.NoError(t, json.Unmarshal([]byte(out), &plain))
	require.InDelta(t, float64(plain.Loss), float64(e.Loss), 1e-12)
	require.Equal(t, plain.Tokens, e.Tokens)
	require.Equal(t, "fp32", e.Recipe)
	require.Len(t, e.Quantized, 3)
	for i, name := range []string{"w8a8-int8-smooth", "w4a16-g32", "w2a16-g128-rtn"} {
		r := e.Quantized[i]
		require.Equal(t, name, r.Quantization)
		require.InDelta(t, float64(e.Loss+r.Above), float64(r.Loss), 1e-12)
		require.NotZero(t, r.Above)
		require.Positive(t, float64(r.StdErr))
		require.InDelta(t, 0, float64(r.Above), 0.3)
	}
	// Rows of 32 and 48 weights, whose last groups of 32 are shorter.
	require.InDelta(t, 8+32/34.3, e.Quantized[0].Bits, 0.1)
	require.InDelta(t, 4.5, e.Quantized[1].Bits, 0.05)

	table, _ := succeed(t, "eval", dir, "--ladder", "w4a16-g32-rtn", "--threads", "1")
	require.Regexp(t, `(?s)^checkpoint .*recipe      bf16\ntokens      1,999\nloss        \d\.\d{4} nats per token, unquantized\n\nquantization   bits per weight  loss    above    ± standard error\nw4a16-g32-rtn  4.5\d +\d\.\d{4}  [+-]0\.\d{4}  0\.\d{4}\n$`, table)

	for _, test := range []struct {
		want string
		args []string
	}{
		{`--quant: unknown quantization "w4a17"`, []string{"eval", dir, "--quant", "w8a8-fp8,w4a17"}},
		{"recipe fp8-smooth has formats of its own", []string{"eval", dir, "--quant", "w8a8-fp8", "--recipe", "fp8-smooth"}},
		{"unknown backend", []string{"eval", dir, "--quant", "w8a8-fp8", "--backend", "tpu"}},
		{`--quant: unknown quantization "fp4"`, []string{"export", dir, "--out", "none", "--quant", "fp4"}},
		{"--format bf16 and --quant w8a8-fp8 both name the format of the weights", []string{"export", dir, "--out", "none", "--quant", "w8a8-fp8", "--format", "bf16"}},
		{"--data is text on which --quant observes the model", []string{"export", dir, "--out", "none", "--data", text}},
		{"rows of model.layers.0.mlp.down_proj.weight have 48 weights", []string{"export", dir, "--out", "none", "--quant", "w4a16-g32"}},
		{"is for octet eval alone", []string{"export", dir, "--out", "none", "--quant", "w3a16-g128"}},
	} {
		status, out, stderr := octet(test.args...)
		require.Equal(t, exitInput, status, test.args)
		require.Empty(t, out)
		requireOneSentence(t, stderr)
		require.Contains(t, stderr, test.want)
		require.NoDirExists(t, "none")
	}
}

func TestExportQuant(t *testing.T) {
	text := corpus(t, 20_000)
	dir := filepath.Join(t.TempDir(), "run")
	succeed(t, trainArgs(text, dir, 6)...)
	out := filepath.Join(t.TempDir(), "out")
	printed, stderr := succeed(t, "export", dir, "--out", out, "--quant", "w8a8-int8-smooth", "--data", text)
	require.Empty(t, stderr)
	require.Regexp(t, `\nformat   w8a8-int8-smooth, smooth-swiglu folded into up_proj and down_proj\nfolder `, printed)
	text = read(t, out, "config.json")
	require.Contains(t, text, `"int-quantized"`)
	again := filepath.Join(t.TempDir(), "again")
	succeed(t, "export", dir, "--out", again, "--quant", "w8a8-int8-smooth") // on the run's own data
	require.NotEqual(t, read(t, out, "model.safetensors"), read(t, again, "model.safetensors"))
	require.Equal(t, text, read(t, again, "config.json"))
	status, _, stderr := octet("eval", out)
	require.Equal(t, exitInput, status)
	require.Contains(t, stderr, "octet reads unquantized weights")

	relu := filepath.Join(t.TempDir(), "relu")
	succeed(t, trainArgs(corpus(t, 20_000), relu, 1, "--recipe", "bf16", "model.activation=relu")...)
	for _, args := range [][]string{{"eval", relu, "--quant", "w8a8-fp8"}, {"export", relu, "--out", again + "2", "--quant", "w8a8-fp8"}} {
		status, _, stderr := octet(args...)
		require.Equal(t, exitInput, status)
		require.Contains(t, stderr, "quantization w8a8-fp8 is for Llama models, with hidden_act silu: the model has relu")
	}
	_, err := os.Stat(again + "2")
	require.ErrorIs(t, err, os.ErrNotExist)
}

// The ladder of a trained model, with its controls: 2 bits rounded to nearest, INT8 inputs with
// a scale for all tokens, and a planted channel that INT8 inputs do not survive without
// SmoothQuant.
func TestLadderOfATrainedModel(t *testing.T) {
	if os.Getenv("OCTET_LONG") == "" {
		t.Skip("trains for a minute: OCTET_LONG=1 runs it")
	}
	dir := filepath.Join(t.TempDir(), "run")
	succeed(t, "train", "--recipe", "bf16", "--steps", "300", "--out", dir)
	above := func(of, names string) map[string]float64 {
		out, _ := succeed(t, "eval", of, "--json", "--quant", names)
		var e evaluated
		require.NoError(t, json.Unmarshal([]byte(out), &e))
		list := map[string]float64{}
		for _, r := range e.Quantized {
			list[r.Quantization] = float64(r.Above)
			t.Logf("%-16s %+.4f ± %.4f", r.Quantization, r.Above, r.StdErr)
		}
		return list
	}
	plain := above(dir, "w8a8-fp8,w8a8-int8,w8a8-int8-smooth,w4a16-g128-rtn,w4a16-g128,w3a16-g128-rtn,w3a16-g128,w2a16-g128-rtn,w2a16-g128")
	require.Less(t, plain["w8a8-int8"], plain["w8a8-fp8"])
	require.Less(t, plain["w8a8-fp8"], plain["w4a16-g128-rtn"])
	for _, bits := range []string{"w4", "w3", "w2"} {
		require.Less(t, plain[bits+"a16-g128"], 0.7*plain[bits+"a16-g128-rtn"], bits)
	}
	require.Greater(t, plain["w2a16-g128-rtn"], 10*plain["w4a16-g128-rtn"])

	base := lossOfInputs(t, dir, nil)
	token, tensor := lossOfInputs(t, dir, int8Cast(1))-base, lossOfInputs(t, dir, int8Cast(0))-base
	t.Logf("INT8 inputs, on 16 batches: per token %+.4f, per tensor %+.4f", token, tensor)
	require.InDelta(t, plain["w8a8-int8"], token, 0.0005, "another implementation of the casts")
	require.Greater(t, tensor, 2*token)

	plantedDir := filepath.Join(t.TempDir(), "planted")
	printed, err := exec.Command("go", "run", "octet/study/outlier", dir, plantedDir).CombinedOutput()
	require.NoError(t, err, "%s", printed)
	planted := above(plantedDir, "w8a8-int8,w8a8-int8-smooth,w8a8-fp8")
	require.Greater(t, planted["w8a8-int8"], 0.02)
	require.Less(t, planted["w8a8-int8-smooth"], 0.002)
	require.Less(t, planted["w8a8-fp8"], 0.2*planted["w8a8-int8"])
}
