package run

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/backend"
	"octet/checkpoint"
	"octet/data"
	"octet/infer"
	"octet/train"
)

// smoothCheckpoint returns the files of a checkpoint of a finished run, and the run's
// configuration.
func smoothCheckpoint(t testing.TB) (files map[string][]byte, c train.Config) {
	t.Helper()
	c = smoothConfig(t)
	dir := filepath.Join(t.TempDir(), "run")
	smoothRun(t, c, dir)
	return contents(t, filepath.Join(dir, checkpointsDir, "step-00000004")), c
}

// header splits a safetensors file into its header and the rest.
func header(file []byte) (head, rest []byte) {
	n := 8 + binary.LittleEndian.Uint64(file)
	return file[8:n], file[n:]
}

// withHeader is the inverse of header.
func withHeader(head, rest []byte) []byte {
	file := binary.LittleEndian.AppendUint64(nil, uint64(len(head)))
	return append(append(file, head...), rest...)
}

// FuzzWeights: a folder with any config.json and any safetensors header gives a loss or an
// error; no memory is allocated for a model that does not match its weights.
func FuzzWeights(f *testing.F) {
	files, _ := smoothCheckpoint(f)
	head, rest := header(files[checkpoint.ModelFile])
	f.Add(files[checkpoint.ConfigFile], head)
	f.Add([]byte(`{"model_type":"llama","hidden_size":32,"intermediate_size":48,"num_hidden_layers":1,"num_attention_heads":2,"num_key_value_heads":1,"vocab_size":256,"rope_theta":0.5}`), head)
	f.Add([]byte(`{"model_type":"octet","hidden_act":"relu","hidden_size":16,"intermediate_size":96,"num_hidden_layers":1,"num_attention_heads":1,"vocab_size":256,"tie_word_embeddings":true}`), head)
	f.Add([]byte(`{"model_type":"llama","hidden_size":16777216,"intermediate_size":16777216,"num_hidden_layers":16777216,"num_attention_heads":1,"vocab_size":16777216}`), head)
	f.Add(files[checkpoint.ConfigFile], []byte(`{"model.norm.weight":{"dtype":"F32","shape":[32],"data_offsets":[0,128]}}`))
	dir := f.TempDir()
	stream := data.Text("weights of any kind")
	f.Fuzz(func(t *testing.T, config, head []byte) {
		require.NoError(t, os.WriteFile(filepath.Join(dir, checkpoint.ConfigFile), config, 0o600))
		require.NoError(t, os.WriteFile(filepath.Join(dir, checkpoint.ModelFile), withHeader(head, rest), 0o600))
		w, err := OpenWeights(dir, "")
		if err != nil {
			return
		}
		defer func() { require.NoError(t, w.Close()) }()
		d, err := backend.Open("emu", backend.Options{Threads: 1})
		require.NoError(t, err)
		defer func() { require.NoError(t, d.Close()) }()
		e, err := infer.NewEvaluator(t.Context(), w.Model, w.Recipe, w, d, infer.Windows{Batch: 1, Seq: 4}, nil)
		if err == nil {
			var loss float64
			loss, err = e.Evaluate(t.Context(), stream, nil)
			require.True(t, err != nil || loss-loss == 0, "the loss is finite")
		}
		if err != nil {
			require.NotContains(t, err.Error(), "\n")
		}
	})
}

// FuzzRestore: a checkpoint with correct checksums and any contents sets a run's state or is
// refused. The next checkpoint holds the state that it set.
func FuzzRestore(f *testing.F) {
	files, c := smoothCheckpoint(f)
	head, rest := header(files[checkpoint.OptimizerFile])
	f.Add(files[checkpoint.StateFile], head)
	f.Add([]byte(`{"version":2,"recipe":"fp8-smooth","step":4,"seed":1,"data":{"epoch":9223372036854775807,"index":3}}`), head)
	f.Add([]byte(`{"version":2,"recipe":"fp8-smooth","step":2147483647,"seed":1,"data":{"epoch":0,"index":-1}}`), head)
	f.Add([]byte(`{"version":2,"recipe":"bf16","step":4,"seed":1}`), head)
	f.Add(files[checkpoint.StateFile], []byte(`{}`))
	f.Add(files[checkpoint.StateFile], []byte(`{"layers.0.mlp.input.e4m3.amax_history":{"dtype":"F32","shape":[0],"data_offsets":[0,0]}}`))
	run, err := Start(f.Context(), Options{Config: c, Dir: filepath.Join(f.TempDir(), "run"), Backend: "emu", Threads: 1})
	require.NoError(f, err)
	f.Cleanup(func() { require.NoError(f, run.Close()) })
	dir := f.TempDir() // not called step-…: any step may be in it
	for _, name := range []string{checkpoint.ModelFile, checkpoint.ConfigFile} {
		require.NoError(f, os.WriteFile(filepath.Join(dir, name), files[name], 0o600))
	}
	f.Fuzz(func(t *testing.T, state, head []byte) {
		files[checkpoint.StateFile], files[checkpoint.OptimizerFile] = state, withHeader(head, rest)
		files[checkpoint.ManifestFile] = manifestOf(t, files)
		for _, name := range []string{checkpoint.StateFile, checkpoint.OptimizerFile, checkpoint.ManifestFile} {
			require.NoError(t, os.WriteFile(filepath.Join(dir, name), files[name], 0o600))
		}
		opened, err := checkpoint.Open(dir)
		if err != nil {
			return
		}
		defer func() { require.NoError(t, opened.Close()) }()
		if err := run.Trainer.Restore(t.Context(), opened); err != nil {
			require.NotContains(t, err.Error(), "\n")
			return
		}
		want, err := train.ReadState(opened)
		require.NoError(t, err)
		want.Config = nil // the trainer does not store it
		saved, err := run.Trainer.Contents(want.Octet, want.Backend)
		require.NoError(t, err)
		if got := saved.State.(train.State); len(got.Spikes.Losses)+len(want.Spikes.Losses) > 0 { // otherwise nil or empty
			require.Equal(t, want, got)
		}
	})
}

// manifestOf returns the manifest of files, as Save writes it.
func manifestOf(t *testing.T, files map[string][]byte) []byte {
	t.Helper()
	type entry struct {
		Name   string `json:"name"`
		Size   int    `json:"size"`
		SHA256 string `json:"sha256"`
	}
	m := struct {
		Format  string  `json:"format"`
		Version int     `json:"version"`
		Files   []entry `json:"files"`
	}{Format: "octet-checkpoint", Version: 1}
	for _, name := range []string{checkpoint.ModelFile, checkpoint.ConfigFile, checkpoint.OptimizerFile, checkpoint.StateFile} {
		sum := sha256.Sum256(files[name])
		m.Files = append(m.Files, entry{name, len(files[name]), hex.EncodeToString(sum[:])})
	}
	text, err := json.MarshalIndent(m, "", "  ")
	require.NoError(t, err)
	return append(text, '\n')
}
