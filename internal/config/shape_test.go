package config

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/data"
	"octet/tokenizer"
)

// The vocabulary is that of the data's tokenizer unless it is given.
func TestVocabOfData(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, data.WritePrepared(dir, data.Prepared{
		Kind: data.KindDocuments, Tokenizer: data.PreparedTokenizer{Vocab: 512},
		Shards: []data.PreparedShard{{Name: "train-000000", Tokens: 1, Documents: 1}},
	}))
	var train tokenizer.Trainer
	train.Vocab = 300
	train.Add([]byte("some text, and some more of the text, and some more text"))
	raw, err := train.Train()
	require.NoError(t, err)
	trained, err := tokenizer.ParseJSON(raw)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "mine.json"), raw, 0o600))
	file := filepath.Join(dir, "config.toml")
	require.NoError(t, os.WriteFile(file, []byte("[model]\nvocab = 320\n"), 0o600))
	for want, args := range map[int]Args{
		256:             {},
		512:             {Assignments: []string{"data.paths=."}},
		8192:            {Assignments: []string{"data.paths=x"}, Flags: Flags{Model: Once{"small", true}}},
		320:             {File: file, Assignments: []string{"data.paths=."}},
		600:             {Assignments: []string{"data.paths=.", "model.vocab=600"}},
		trained.Vocab(): {Assignments: []string{"data.paths=x.bin", "data.tokenizer=mine.json"}},
	} {
		args.Dir = dir
		l, err := Load(args)
		require.NoError(t, err)
		require.Equal(t, want, l.Model.Vocab)
	}
	l, err := Load(Args{Dir: dir, Assignments: []string{`data.sources=[{path=".", weight=1.0}]`}})
	require.NoError(t, err)
	require.Equal(t, 512, l.Model.Vocab)
	_, err = Load(Args{Dir: dir, Assignments: []string{"data.paths=x.bin", "data.tokenizer=none"}})
	require.ErrorContains(t, err, "data.tokenizer")
}

// Initial weights give the shape, unless a preset or a key does.
func TestShapeOfInit(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "config.json"), []byte(`{"model_type": "qwen2", "hidden_size": 64, "intermediate_size": 96,
		"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 300, "hidden_act": "silu",
		"max_position_embeddings": 64, "rms_norm_eps": 1e-6, "rope_theta": 1e6, "tie_word_embeddings": true, "use_sliding_window": false}`), 0o600))
	load := func(assignments ...string) *Loaded {
		l, err := Load(Args{Dir: dir, Assignments: append(assignments, "model.init=.")})
		require.NoError(t, err)
		return l
	}
	m := load().Model
	require.Equal(t, []int{2, 64, 4, 2, 96, 300}, []int{m.Layers, m.Dim, m.Heads, m.KVHeads, m.FFN, m.Vocab})
	require.True(t, m.Tied && m.QKVBias)
	require.Equal(t, "smooth-swiglu", m.Activation)
	require.Equal(t, 3, load("model.layers=3").Model.Layers)
	require.Equal(t, 128, load("model.preset=tiny").Model.Dim)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "config.json"), []byte(`{"model_type": "bert"}`), 0o600))
	_, err := Load(Args{Dir: dir, Assignments: []string{"model.init=."}})
	require.ErrorContains(t, err, "model.init: ")
}
