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
