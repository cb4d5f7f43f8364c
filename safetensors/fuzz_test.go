package safetensors

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// FuzzOpen checks that no input panics. A file that opens must have a JSON
// header, its tensors must cover its data exactly, and a copy made with Write
// must have the same contents.
func FuzzOpen(f *testing.F) {
	f.Add(raw(`{"__metadata__":{"format":"pt"},"a":{"dtype":"F8_E4M3","shape":[2,2],"data_offsets":[0,4]},"b":{"dtype":"F4","shape":[2,1],"data_offsets":[4,5]}}  `, []byte{1, 2, 3, 4, 5}))
	f.Add(raw(`{"a":{"dtype":"F32","shape":[],"data_offsets":[0,4]},"e":{"dtype":"I64","shape":[0],"data_offsets":[0,0]}}`, make([]byte, 4)))
	f.Add(raw(`{"a":{"dtype":"U8","shape":[-1,9223372036854775807],"data_offsets":[1e3,2]}}`, nil))
	f.Add(raw(`{"\ud800":{"data_offsets":[0,1],"shape":[1],"dtype":"BOOL"}}`, []byte{1}))
	f.Add([]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f, '{'})
	f.Fuzz(func(t *testing.T, b []byte) {
		var file *File
		var err error
		took := allocated(func() { file, err = openBytes(b) })
		require.Less(t, took, uint64(maxMemory*len(b)+64<<10), "bytes allocated")
		if err != nil {
			require.Less(t, len(err.Error()), 2000)
			require.NotContains(t, err.Error(), "\n")
			return
		}
		start := len(b)
		var tensors []Source
		end := int64(-1)
		for _, tensor := range file.Tensors() {
			if end < 0 {
				start = int(tensor.Offset)
			} else {
				require.Equal(t, end, tensor.Offset)
			}
			end = tensor.Offset + tensor.Size
			data := make([]byte, tensor.Size)
			require.NoError(t, file.ReadInto(tensor.Name, data))
			tensors = append(tensors, Source{tensor.Name, tensor.DType, tensor.Shape, Bytes(data)})
		}
		if len(tensors) > 0 {
			require.EqualValues(t, len(b), end)
		}
		require.True(t, json.Valid(b[8:start]))

		again, err := openBytes(write(t, tensors, file.Metadata()))
		require.NoError(t, err)
		require.Len(t, again.Tensors(), len(tensors))
		for _, want := range tensors {
			got, ok := again.Tensor(want.Name)
			require.True(t, ok)
			require.Equal(t, want.DType, got.DType)
			require.Equal(t, want.Shape, got.Shape)
			data := make([]byte, got.Size)
			require.NoError(t, again.ReadInto(want.Name, data))
			var wrote bytes.Buffer
			require.NoError(t, want.Data(&wrote))
			require.True(t, bytes.Equal(wrote.Bytes(), data))
		}
		require.Len(t, again.Metadata(), len(file.Metadata()))
		for key, value := range file.Metadata() {
			require.Equal(t, value, again.Metadata()[key])
		}
	})
}

func FuzzOpenSharded(f *testing.F) {
	f.Add([]byte(`{"metadata":{"total_size":1},"weight_map":{"a":"model-1.safetensors"}}`))
	f.Add([]byte(`{"weight_map":{"a":"../model-1.safetensors","b":"."}}`))
	dir := f.TempDir()
	require.NoError(f, os.WriteFile(filepath.Join(dir, "model-1.safetensors"), write(f, []Source{{"a", "U8", []int64{1}, Bytes([]byte{1})}}, nil), 0o666))
	f.Fuzz(func(t *testing.T, text []byte) {
		index := filepath.Join(dir, "model.safetensors.index.json")
		require.NoError(t, os.WriteFile(index, text, 0o666))
		files, err := OpenSharded(index)
		if err != nil {
			return
		}
		require.Len(t, files, 1, "the directory has one model file")
		require.NoError(t, files[0].Close())
	})
}
