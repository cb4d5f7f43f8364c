package export

import (
	"bytes"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/backend"
	_ "octet/backend/emu"
	"octet/checkpoint"
	"octet/run"
)

// trained trains a tiny model for one step on each of the named backends, and returns the
// run's folder.
func trained(t *testing.T, recipe string, backends ...string) string {
	return trainedWith(t, recipe, nil, backends...)
}

// trainedWith is trained with more settings.
func trainedWith(t *testing.T, recipe string, settings []string, backends ...string) string {
	dir, text := filepath.Join(t.TempDir(), "run"), filepath.Join(t.TempDir(), "text.txt")
	require.NoError(t, os.WriteFile(text, bytes.Repeat([]byte("text "), 4000), 0o600))
	c, err := run.NewConfig("", append([]string{
		"recipe=" + recipe, "data.paths=" + text, "data.seq=32", "train.micro_batch=2",
		"model.dim=32", "model.heads=2", "model.kv_heads=1", "model.ffn=48", "model.layers=2",
	}, settings...)...)
	require.NoError(t, err)
	for i, name := range backends {
		c.Train.Steps = i + 1
		r, err := run.Start(t.Context(), run.Options{Config: c, Dir: dir, Resume: i > 0, Backend: name, Threads: 1})
		require.NoError(t, err)
		require.NoError(t, r.Train(t.Context(), func(run.Progress) {}))
		require.NoError(t, r.Close())
	}
	return dir
}

// A run can be exported on any device, also after it moved to one with other formats.
func TestExportOnAnyDevice(t *testing.T) {
	const elsewhere = "emu:gaudi2"
	dir := trained(t, "fp8-smooth", "emu", elsewhere)
	for _, name := range []string{"emu", elsewhere} {
		w, err := run.OpenWeights(dir, "")
		require.NoError(t, err)
		dev, err := backend.Open(name, backend.Options{Threads: 1})
		require.NoError(t, err)
		m, err := FromRun(t.Context(), w, dev)
		require.NoError(t, err)
		scale, err := m.ScaleInv("layers.0.mlp.input")
		require.NoError(t, err)
		require.Positive(t, scale)
		require.Len(t, m.Smooth, 2)
		require.NoError(t, dev.Close())
		require.NoError(t, w.Close())
	}
}

// An export of each family is read back with the same config and weights, and starts a run with
// the same model and no other.
func TestExportOfFamilies(t *testing.T) {
	for modelType, settings := range map[string][]string{
		"llama": {"model.rope_scaling=[8, 1, 4, 16]", "model.rope_theta=500000"},
		"qwen2": {"model.qkv_bias=true", "model.tied=true"},
		"qwen3": {"model.qk_norm=learned", "model.head_dim=32"},
	} {
		dir, out := trainedWith(t, "bf16", settings, "emu"), filepath.Join(t.TempDir(), "out")
		w, err := run.OpenWeights(dir, "")
		require.NoError(t, err)
		m, err := FromRun(t.Context(), w, nil)
		require.NoError(t, err)
		require.NoError(t, Write(t.Context(), out, "fp32", m, nil))
		text, err := os.ReadFile(filepath.Join(out, "config.json"))
		require.NoError(t, err)
		require.Contains(t, string(text), `"model_type": "`+modelType+`"`)
		c, tensors, err := checkpoint.OpenModel(out)
		require.NoError(t, err)
		require.Equal(t, w.HF, c)
		require.NoError(t, tensors.Match(c))
		for name := range c.Layout() {
			want, err := w.Param(name)
			require.NoError(t, err)
			got, err := tensors.Weight(name)
			require.NoError(t, err)
			require.Equal(t, want, got, name)
			if strings.HasSuffix(name, ".bias") {
				require.NotContains(t, got, float32(0), "%s did not learn", name)
			}
		}
		require.NoError(t, tensors.Close())
		require.NoError(t, w.Close())
		trainedWith(t, "fp8-smooth", append(settings, "model.init="+out), "emu")
		_, err = run.NewConfig("", "model.head_dim=7")
		require.ErrorContains(t, err, "model.head_dim = 7 is odd, but rotary embeddings need an even head size; use 8")
	}
}

// Each expert's smoothing scales are folded into its own weights, under Mixtral's names. Formats with
// static scales are refused.
func TestExportOfExperts(t *testing.T) {
	dir := trainedWith(t, "fp8-smooth", []string{"model.experts=3", "model.init_std=0.5"}, "emu")
	w, err := run.OpenWeights(dir, "")
	require.NoError(t, err)
	dev, err := backend.Open("emu", backend.Options{Threads: 1})
	require.NoError(t, err)
	m, err := FromRun(t.Context(), w, dev)
	require.NoError(t, err)
	require.Len(t, m.Smooth, 6)
	require.NotEqual(t, m.Smooth[4].C, m.Smooth[3].C)
	const name = "model.layers.1.block_sparse_moe.experts.1."
	for module, times := range map[string]func(i int) float32{
		"w1.weight": func(int) float32 { return 1 },
		"w2.weight": func(i int) float32 { return m.Smooth[4].C[i%48] },
		"w3.weight": func(i int) float32 { return 1 / m.Smooth[4].C[i/32] },
	} {
		x, err := w.Param(name + module)
		require.NoError(t, err)
		for i := range x {
			x[i] *= times(i)
		}
		folded, err := m.Folded(name + module)
		require.NoError(t, err)
		require.Equal(t, x, folded, module)
	}
	require.ErrorContains(t, Write(t.Context(), filepath.Join(t.TempDir(), "out"), "fp8", m, nil), "format fp8 has no layout for experts here; use fp32 or bf16")
	require.NoError(t, dev.Close())
	require.NoError(t, w.Close())
}

// A scale that cannot be read and a scale that the run did not store give different errors.
func TestExportSaysWhatFailed(t *testing.T) {
	dir := trained(t, "fp8-delayed", "emu")
	w, err := run.OpenWeights(dir, "")
	require.NoError(t, err)
	dev, err := backend.Open("emu", backend.Options{Threads: 1})
	require.NoError(t, err)
	m, err := FromRun(t.Context(), w, dev)
	require.NoError(t, err)
	_, err = m.ScaleInv("layers.0.mlp.input")
	require.NoError(t, err)
	_, err = m.ScaleInv("layers.9.mlp.input")
	require.ErrorContains(t, err, "which only a run in FP8 stores")
	require.NoError(t, w.Close())
	_, err = m.ScaleInv("layers.0.mlp.input")
	require.ErrorIs(t, err, fs.ErrClosed)
	require.NotContains(t, err.Error(), "which only a run in FP8 stores")
	require.NoError(t, dev.Close())
}

// An export is for other programs, which do not know registered activations.
func TestExportRefusesOtherActivations(t *testing.T) {
	_, err := FromRun(t.Context(), &run.Weights{Path: "runs/mine", HF: checkpoint.Config{HiddenAct: "mine", Gated: true}}, nil)
	require.ErrorContains(t, err, `runs/mine: octet exports models with silu, gelu or relu alone, not "mine"`)
	fog := checkpoint.Config{HiddenAct: "silu", Gated: true, Norms: checkpoint.Norms{Norm: "post", NoFinal: true}}
	_, err = FromRun(t.Context(), &run.Weights{Path: "runs/mine", HF: fog}, nil)
	require.ErrorContains(t, err, "runs/mine: transformers has no model with these norms (model.norm post final_norm=false)")
	biased := checkpoint.Config{HiddenAct: "silu", Gated: true, QKVBias: true, Norms: checkpoint.Norms{QK: "learned"}}
	_, err = FromRun(t.Context(), &run.Weights{Path: "runs/mine", HF: biased}, nil)
	require.ErrorContains(t, err, "runs/mine: transformers has no model with biases of queries, keys and values alone and these layers")
}
