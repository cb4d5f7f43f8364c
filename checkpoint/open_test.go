package checkpoint

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/fp8"
	"octet/safetensors"
)

// TestOpenModelOfOthers opens folders in Hugging Face's layout: no manifest, one file
// or several.
func TestOpenModelOfOthers(t *testing.T) {
	dir := t.TempDir()
	put := func(name string, fill func(w io.Writer) error) {
		f, err := os.Create(filepath.Join(dir, name))
		require.NoError(t, err)
		require.NoError(t, fill(f))
		require.NoError(t, f.Close())
	}
	shard := func(dtype string, tensors ...string) func(io.Writer) error {
		return func(w io.Writer) error {
			var list []safetensors.Source
			for _, name := range tensors {
				list = append(list, safetensors.Source{Name: name, DType: dtype, Shape: []int64{2}, Data: safetensors.Bytes([]byte(name))})
			}
			return safetensors.Write(w, list, map[string]string{"format": "pt"})
		}
	}
	fails := func(want string) {
		_, _, err := OpenModel(dir)
		require.ErrorContains(t, err, want)
	}
	fails("no config.json: not the folder of a model")
	_, _, err := OpenModel(filepath.Join(dir, "nowhere"))
	require.ErrorContains(t, err, "nowhere does not exist")
	require.NoError(t, os.Mkdir(filepath.Join(dir, Dir), 0o700))
	fails("is a run folder: name one of its checkpoints")
	require.NoError(t, os.Remove(filepath.Join(dir, Dir)))
	put(ConfigFile, Bytes(minimal(`{"attention_bias":true}`)))
	fails("config.json: attention_bias = true")
	put(ConfigFile, Bytes(append(minimal(`{}`), bytes.Repeat([]byte(" "), maxJSON)...)))
	fails("config.json: longer than 1048576 bytes")
	put(ConfigFile, Bytes(minimal(`{}`)))
	fails("neither model.safetensors nor model.safetensors.index.json exists")

	put("model-00001-of-00002.safetensors", shard("BF16", "abcd", "efgh"))
	put("model-00002-of-00002.safetensors", shard("F8_E4M3", "ij"))
	put("model.safetensors.index.json", Bytes([]byte(`{"metadata":{"total_size":10},"weight_map":{
		"abcd":"model-00001-of-00002.safetensors","efgh":"model-00001-of-00002.safetensors","ij":"model-00002-of-00002.safetensors"}}`)))
	config, model, err := OpenModel(dir)
	require.NoError(t, err)
	require.Equal(t, 64, config.HiddenSize)
	require.ErrorContains(t, model.Match(config), indexFile+": there is no tensor \"model.embed_tokens.weight\"")
	requireTensors(t, []Tensor{
		{"abcd", fp8.BF16, []int{2}, Bytes([]byte("abcd"))},
		{"efgh", fp8.BF16, []int{2}, Bytes([]byte("efgh"))},
		{"ij", fp8.E4M3, []int{2}, Bytes([]byte("ij"))},
	}, model)
	require.NoError(t, model.Close())

	put("model-00002-of-00002.safetensors", shard("U8", "ij"))
	fails(`tensor "ij": octet does not support dtype U8`)
	require.NoError(t, os.Remove(filepath.Join(dir, "model-00002-of-00002.safetensors")))
	fails("model-00002-of-00002.safetensors")

	put(adapterFile, Bytes([]byte(`{"peft_type":"LORA"}`)))
	fails("adapter_config.json: octet does not support adapters")
	require.NoError(t, os.Remove(filepath.Join(dir, adapterFile)))

	put(ModelFile, shard("BF16", "abcd")) // has priority over the index, as in transformers
	_, model, err = OpenModel(dir)
	require.NoError(t, err)
	require.Len(t, model.List(), 1)
	require.NoError(t, model.Close())
}

func TestOpenNoticesDamage(t *testing.T) {
	path := save(t, t.TempDir(), 1)
	flip(t, filepath.Join(path, OptimizerFile))
	_, err := Open(path)
	require.ErrorContains(t, err, "optimizer.safetensors: its bytes have changed")
	_, model, err := OpenModel(path)
	require.NoError(t, err, "the model is undamaged")
	require.NoError(t, model.Close())
	flip(t, filepath.Join(path, ModelFile))
	_, _, err = OpenModel(path)
	require.ErrorContains(t, err, "model.safetensors: its bytes have changed")
	require.NoError(t, os.Remove(filepath.Join(path, StateFile)))
	_, _, err = OpenModel(path)
	require.ErrorContains(t, err, "state.json: missing")
	_, err = Open(t.TempDir())
	require.ErrorContains(t, err, "no MANIFEST.json")
}

// A shard holds the model and the optimizer state, so damage to either is damage to both.
func TestOpenNoticesDamagedShards(t *testing.T) {
	for _, name := range []string{ConfigFile, shardName(0, 2), shardName(1, 2)} {
		path := saveShards(t, t.TempDir(), 1, 2)
		flip(t, filepath.Join(path, name))
		_, err := Open(path)
		require.ErrorContains(t, err, name+": its bytes have changed")
		_, _, err = OpenModel(path)
		require.ErrorContains(t, err, name+": its bytes have changed")
		require.NoError(t, os.Remove(filepath.Join(path, name)))
		_, _, err = OpenModel(path)
		require.ErrorContains(t, err, name+": missing")
		list, err := List(filepath.Dir(path))
		require.NoError(t, err)
		require.ErrorContains(t, list[0].Damage, name+": missing")
	}
}

// TestOpenModelWantsTheManifest checks that a checkpoint without its manifest, or with
// a symlink in its place, is not opened like a model folder without checksums.
func TestOpenModelWantsTheManifest(t *testing.T) {
	path := save(t, t.TempDir(), 1)
	manifest := filepath.Join(path, ManifestFile)
	require.NoError(t, os.Rename(manifest, manifest+".moved"))
	_, _, err := OpenModel(path)
	require.ErrorContains(t, err, "state.json: there is no MANIFEST.json in the same folder")
	for _, to := range []string{ManifestFile + ".moved", "nothing"} {
		require.NoError(t, os.Symlink(to, manifest))
		_, _, err = OpenModel(path)
		require.ErrorContains(t, err, "MANIFEST.json: a symbolic link")
		require.NoError(t, os.Remove(manifest))
	}
	// Without state.json it is a plain model folder.
	require.NoError(t, os.Remove(filepath.Join(path, StateFile)))
	_, model, err := OpenModel(path)
	require.NoError(t, err)
	require.NoError(t, model.Close())
}
