package tokenizer

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// OfBytes has the ids of bytes, and its files say so.
func TestOfBytes(t *testing.T) {
	b := OfBytes()
	text := make([]byte, 256)
	want := make([]int32, 256)
	for i := range text {
		text[i], want[i] = byte(i), int32(i)
	}
	require.Equal(t, 256, b.Vocab())
	require.Equal(t, want, b.Encode(nil, text, Options{Special: true, Template: true}))
	require.Equal(t, want, b.Encode(nil, text, Options{}))
	dir := t.TempDir()
	for _, f := range b.Files {
		require.NoError(t, os.WriteFile(filepath.Join(dir, f.Name), f.Data, 0o600))
	}
	again, err := OpenBundle(dir)
	require.NoError(t, err)
	require.Equal(t, b.Files, again.Files)
	require.Equal(t, want, again.Encode(nil, text, Options{}))
	require.Zero(t, again.EndOfText)
	require.True(t, again.Ends(0))
	require.False(t, again.Ends(1))
	require.Equal(t, []byte{0xff}, again.Text(255))
	require.Equal(t, b.SHA256(), again.SHA256())
	alone, err := newBundle("", []File{{Data: b.Files[0].Data}})
	require.NoError(t, err)
	require.EqualValues(t, -1, alone.EndOfText, "without generation_config.json no id ends a text")
}

// The id that ends a text comes from tokenizer_config.json, generation_config.json or a known name.
func TestEndOfText(t *testing.T) {
	train := Trainer{Vocab: 300, Special: []string{"<|endoftext|>", "<|im_end|>", "</s>"}}
	train.Add([]byte("some text and more text"))
	raw, err := train.Train()
	require.NoError(t, err)
	for _, c := range []struct {
		name  string
		files map[string]string
		want  int32
		stops []int32
	}{
		{"a known name", nil, 0, nil},
		{"a text", map[string]string{"tokenizer_config.json": `{"eos_token": "<|im_end|>"}`}, 1, nil},
		{"an object", map[string]string{"tokenizer_config.json": `{"eos_token": {"content": "</s>", "lstrip": false}}`}, 2, nil},
		{"null", map[string]string{"tokenizer_config.json": `{"eos_token": null}`}, 0, nil},
		{"generation", map[string]string{"generation_config.json": `{"eos_token_id": 1}`}, 1, []int32{1}},
		{"a list", map[string]string{"generation_config.json": `{"eos_token_id": [2, 1]}`, "tokenizer_config.json": `{}`}, 2, []int32{1, 2}},
		{"both", map[string]string{"generation_config.json": `{"eos_token_id": [2, 1]}`, "tokenizer_config.json": `{"eos_token": "<|endoftext|>"}`}, 0, []int32{0, 1, 2}},
	} {
		dir := t.TempDir()
		require.NoError(t, os.WriteFile(filepath.Join(dir, "tokenizer.json"), raw, 0o600))
		for name, text := range c.files {
			require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
		}
		require.True(t, In(dir))
		b, err := OpenBundle(dir)
		require.NoError(t, err, c.name)
		require.Equal(t, c.want, b.EndOfText, c.name)
		for _, id := range c.stops {
			require.True(t, b.Ends(id))
		}
		require.False(t, b.Ends(200))

		// Another end of text is written to the files.
		require.NoError(t, b.SetEndOfText("<|im_end|>"))
		for _, f := range b.Files {
			require.NoError(t, os.WriteFile(filepath.Join(dir, f.Name), f.Data, 0o600))
		}
		b, err = OpenBundle(dir)
		require.NoError(t, err)
		require.EqualValues(t, 1, b.EndOfText)
		require.ErrorContains(t, b.SetEndOfText("<none>"), `"<none>" is not a token`)
	}
	for files, want := range map[[2]string]string{
		{"tokenizer_config.json", `{"eos_token": "<x>"}`}:     `tokenizer_config.json: eos_token: "<x>" is not a token`,
		{"tokenizer_config.json", `{"eos_token": 7}`}:         "tokenizer_config.json: eos_token: json",
		{"tokenizer_config.json", `{`}:                        "tokenizer_config.json",
		{"generation_config.json", `{"eos_token_id": 99999}`}: "eos_token_id 99999 is not in the vocabulary",
		{"generation_config.json", `{"eos_token_id": ["a"]}`}: "generation_config.json: eos_token_id",
		{"generation_config.json", `{"eos_token_id":[null]}`}: "generation_config.json: eos_token_id has null, not an id",
		{"generation_config.json", `null`}:                    "generation_config.json: it is null, not an object",
		{"tokenizer_config.json", `null`}:                     "tokenizer_config.json: it is null, not an object",
		{"tokenizer_config.json", `[]`}:                       "tokenizer_config.json: json",
	} {
		dir := t.TempDir()
		require.NoError(t, os.WriteFile(filepath.Join(dir, "tokenizer.json"), raw, 0o600))
		require.NoError(t, os.WriteFile(filepath.Join(dir, files[0]), []byte(files[1]), 0o600))
		_, err := OpenBundle(dir)
		require.ErrorContains(t, err, want)
	}
}

// A file alone gets a tokenizer_config.json; companions of a file of another name are not read.
func TestBundleOfAFile(t *testing.T) {
	dir := t.TempDir()
	raw := OfBytes().Files[0].Data
	require.NoError(t, os.WriteFile(filepath.Join(dir, "mine.json"), raw, 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "tokenizer_config.json"), []byte(`{"eos_token": "a"}`), 0o600))
	require.False(t, In(dir))
	_, err := OpenBundle(dir)
	require.ErrorContains(t, err, "has no tokenizer.json and no tokenizer.model")
	b, err := OpenBundle(filepath.Join(dir, "mine.json"))
	require.NoError(t, err)
	require.Equal(t, "tokenizer.json", b.Files[0].Name)
	require.Equal(t, configName, b.Files[1].Name)
	var config map[string]any
	require.NoError(t, json.Unmarshal(b.Files[1].Data, &config))
	require.Equal(t, "PreTrainedTokenizerFast", config["tokenizer_class"])
	require.EqualValues(t, -1, b.EndOfText)

	require.NoError(t, os.Rename(filepath.Join(dir, "mine.json"), filepath.Join(dir, "tokenizer.json")))
	b, err = OpenBundle(filepath.Join(dir, "tokenizer.json"))
	require.NoError(t, err)
	require.EqualValues(t, 'a', b.EndOfText, "tokenizer_config.json belongs to tokenizer.json beside it")
	_, err = OpenBundle(filepath.Join(dir, "none"))
	require.ErrorIs(t, err, os.ErrNotExist)
}

// Rank files have no tokenizer_config.json, so that generation_config.json keeps the end of text.
func TestEndOfTextOfRanks(t *testing.T) {
	for text, want := range map[string]string{
		"": `{"eos_token_id": 261}`, `{"eos_token_id":5,"top_k":9}`: `{"eos_token_id":[261,5],"top_k":9}`, `{"eos_token_id":[261,7]}`: `{"eos_token_id":[261,7]}`,
	} {
		dir := t.TempDir()
		write := func(name string, raw []byte) {
			require.NoError(t, os.WriteFile(filepath.Join(dir, name), raw, 0o600))
		}
		write("tokenizer.model", rankFile())
		if text != "" {
			write(generationName, []byte(text))
		}
		b, err := OpenBundle(dir)
		require.NoError(t, err)
		require.NoError(t, b.SetEndOfText("Ġhello"))
		require.EqualValues(t, 261, b.EndOfText)
		require.True(t, b.Ends(261))
		for _, f := range b.Files {
			write(f.Name, f.Data)
			if f.Name == generationName {
				require.JSONEq(t, want, string(f.Data))
			}
		}
		again, err := OpenBundle(dir)
		require.NoError(t, err)
		require.EqualValues(t, 261, again.EndOfText)
		require.Equal(t, b.Files, again.Files)
	}
}
