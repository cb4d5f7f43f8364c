package serve

import (
	"encoding/binary"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"testing"

	"octet/fp8"

	"github.com/stretchr/testify/require"
)

// A folder that stays open is read again when its files have changed.
func TestFolders(t *testing.T) {
	write := func(dir string, value float32) string {
		require.NoError(t, os.MkdirAll(dir, 0o755))
		config := `{"architectures":["LlamaForCausalLM"],"model_type":"llama","hidden_size":2,"intermediate_size":2,"num_hidden_layers":1,"num_attention_heads":1,"num_key_value_heads":1,"head_dim":2,"vocab_size":4,"max_position_embeddings":8,"rms_norm_eps":1e-5,"rope_theta":10000,"tie_word_embeddings":true,"hidden_act":"silu"}`
		require.NoError(t, os.WriteFile(filepath.Join(dir, "config.json"), []byte(config), 0o644))
		header := `{"x":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}`
		raw := append(binary.LittleEndian.AppendUint64(nil, uint64(len(header))), header...)
		require.NoError(t, os.WriteFile(filepath.Join(dir, "new"), fp8.AppendFloats(raw, value), 0o644))
		require.NoError(t, os.Rename(filepath.Join(dir, "new"), filepath.Join(dir, "model.safetensors")))
		return dir
	}
	s := &server{}
	read := func(dir string) (float32, error) {
		q := &request{header: fmt.Appendf(nil, `{"path":%q,"name":"model/x","values":true}`, dir)}
		a, err := readTensor(t.Context(), s, q)
		if err != nil {
			return 0, err
		}
		return math.Float32frombits(binary.LittleEndian.Uint32(a.buffers[0])), nil
	}
	root := t.TempDir()
	first := write(filepath.Join(root, "first"), 1)
	for _, value := range []float32{1, 2} {
		write(first, value)
		got, err := read(first)
		require.NoError(t, err)
		require.Equal(t, value, got)
	}
	f, err := s.folders.unchanged(first)
	require.NoError(t, err)
	again, err := s.folders.unchanged(first)
	require.NoError(t, err)
	require.Same(t, f, again)
	anew, err := s.folders.open(first)
	require.NoError(t, err)
	require.NotSame(t, f, anew, "opening verifies the checksums again")
	require.Len(t, s.folders.list, 1)
	for i := range openFolders + 1 {
		_, err := read(write(filepath.Join(root, fmt.Sprint(i)), 3))
		require.NoError(t, err)
	}
	require.Len(t, s.folders.list, openFolders)
	require.NoError(t, os.RemoveAll(first))
	_, err = read(first)
	require.Equal(t, "missing", kindOf(err))
	require.NoError(t, os.Mkdir(first, 0o755))
	_, err = read(first)
	require.Equal(t, "missing", kindOf(err), err)
	require.NoError(t, s.folders.trim(0))
}
