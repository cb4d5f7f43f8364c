package checkpoint

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// FuzzManifest checks that no input panics, and that every accepted manifest has the
// encoding that Save writes.
func FuzzManifest(f *testing.F) {
	text, err := os.ReadFile(filepath.Join(save(f, f.TempDir(), 1), ManifestFile))
	require.NoError(f, err)
	f.Add(text)
	f.Add(bytes.ReplaceAll(text, []byte("model"), []byte("../x")))
	text, err = os.ReadFile(filepath.Join(saveShards(f, f.TempDir(), 1, 3), ManifestFile))
	require.NoError(f, err)
	f.Add(text)
	f.Add(bytes.ReplaceAll(text, []byte("shard-00001"), []byte("shard-00002")))
	f.Add([]byte(`{"format":"octet-checkpoint","version":2,"files":[` + strings.Repeat(`{},`, 1000) + `{}]}`))
	f.Add([]byte(`{"format":"octet-checkpoint","version":1,"files":[{"name":"/","size":-1}]}`))
	f.Add([]byte(`{"format":"octet-checkpoint","version":1,"files":[` + strings.Repeat(`{},`, 1000) + `{}]}`))
	f.Add([]byte(strings.Repeat(`{"files":`, 20_000)))
	f.Fuzz(func(t *testing.T, text []byte) {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		m, err := parseManifest(text)
		runtime.ReadMemStats(&after)
		require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(64*len(text)+64<<10))
		if err != nil {
			return
		}
		again, err := encodeJSON(m)
		require.NoError(t, err)
		require.Equal(t, string(text), string(again))
		for i, file := range m.Files {
			if m.ranks() == 0 {
				require.Equal(t, wholeFiles[i], file.Name)
			} else if i >= len(shardedFiles) {
				require.Equal(t, shardName(i-len(shardedFiles), m.ranks()), file.Name)
			} else {
				require.Equal(t, shardedFiles[i], file.Name)
			}
		}
	})
}

// FuzzShards checks that no headers of two shards panic or take much memory. If the shards
// open, each byte of their data belongs to one tensor, and rows are parts of their tensor.
func FuzzShards(f *testing.F) {
	one := func(name, shape, offsets string) string {
		return `"` + name + `":{"dtype":"U8","shape":` + shape + `,"data_offsets":` + offsets + `}`
	}
	metadata := func(pairs string) string { return `"__metadata__":{` + pairs + `},` }
	f.Add([]byte(`{`+metadata(`"rows.model/a":"0:2/5","format.model/a":"e4m3"`)+one("model/a", "[2,1]", "[0,2]")+`}`),
		[]byte(`{`+metadata(`"rows.model/a":"2:5/5","format.model/a":"e4m3"`)+one("model/a", "[3,1]", "[0,3]")+`}`), 2, 3)
	f.Add([]byte(`{`+metadata(`"rows.optimizer/a":"4:4/4","format.optimizer/a":"e4m3"`)+one("optimizer/a", "[0,2]", "[0,0]")+`}`),
		[]byte(`{`+metadata(`"format.optimizer/a":"e4m3"`)+one("optimizer/a", "[4,2]", "[0,8]")+`}`), 0, 8)
	f.Add([]byte(`{`+metadata(`"rows.model/a":"0:4611686018427387904/9223372036854775807","format.model/a":"e4m3"`)+one("model/a", "[4611686018427387904,0]", "[0,0]")+`}`),
		[]byte(`{`+metadata(`"rows.model/a":"4611686018427387904:9223372036854775807/9223372036854775807","format.model/a":"e4m3"`)+one("model/a", "[4611686018427387903,0]", "[0,0]")+`}`), 0, 0)
	f.Add([]byte(`{`+metadata(`"rows.model/b":"0:1/1"`)+one("model/a", "[]", "[0,1]")+`}`), []byte(`{}`), 1, 0)
	f.Add([]byte(`{`+metadata(`"columns.model/a":"0:2/5","format.model/a":"e4m3"`)+one("model/a", "[3,2]", "[0,6]")+`}`),
		[]byte(`{`+metadata(`"columns.model/a":"2:5/5","format.model/a":"e4m3"`)+one("model/a", "[3,3]", "[0,9]")+`}`), 6, 9)
	f.Add([]byte(`{`+metadata(`"columns.model/a":"0:4611686018427387904/9223372036854775807","format.model/a":"e4m3"`)+one("model/a", "[0,4611686018427387904]", "[0,0]")+`}`),
		[]byte(`{`+metadata(`"columns.model/a":"4611686018427387904:9223372036854775807/9223372036854775807","format.model/a":"e4m3"`)+one("model/a", "[0,4611686018427387903]", "[0,0]")+`}`), 0, 0)
	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, a, b []byte, dataA, dataB int) {
		total := int64(0)
		for rank, header := range [][]byte{a, b} {
			n := []int{dataA, dataB}[rank] & 0xfff
			total += int64(n)
			text := binary.LittleEndian.AppendUint64(nil, uint64(len(header)))
			text = append(text, header...)
			for i := range n {
				text = append(text, byte(rank<<7|i&0x7f))
			}
			require.NoError(t, os.WriteFile(filepath.Join(dir, shardName(rank, 2)), text, 0o600))
		}
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		model, optimizer, err := openShards(dir, 2)
		runtime.ReadMemStats(&after)
		require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(64*(len(a)+len(b))+128<<10))
		if err != nil {
			require.Less(t, len(err.Error()), 3000)
			require.NotContains(t, err.Error(), "\n")
			return
		}
		for _, s := range []*Tensors{model, optimizer} {
			for _, x := range s.List() {
				var whole bytes.Buffer
				require.NoError(t, x.Data(&whole))
				total -= int64(whole.Len())
				require.Equal(t, x.Elems()*int64(x.DType.Size()), int64(whole.Len()))
				if whole.Len() == 0 {
					continue
				}
				n := rowsOf(x.Shape)
				row := whole.Len() / n
				for from := range n {
					dst := make([]byte, row)
					require.NoError(t, s.ReadRows(x.Name, from, from+1, dst))
					require.True(t, bytes.Equal(whole.Bytes()[from*row:][:row], dst))
				}
			}
		}
		require.Zero(t, total, "bytes in no tensor")
		require.NoError(t, model.Close())
	})
}

// FuzzConfig checks that no input panics. An accepted config must be valid, survive
// writing and reading, and become an error when an unknown key is added.
func FuzzConfig(f *testing.F) {
	f.Add(minimal(`{}`))
	f.Add(minimal(`{"rope_parameters":{"rope_theta":20000.0,"rope_type":"default"},"architectures":["LlamaForCausalLM"],"dtype":"bfloat16"}`))
	f.Add(minimal(`{"rope_scaling":{"type":"linear","factor":2},"num_key_value_heads":2,"head_dim":8,"tie_word_embeddings":true}`))
	f.Add(minimal(`{"quantization_config":` + quantizationConfig + `}`))
	f.Add([]byte(`null`))
	f.Add([]byte(`{"hidden_size":1e3,"model_type":{"a":[]}}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		var c Config
		if err := json.Unmarshal(text, &c); err != nil {
			return
		}
		require.NoError(t, c.Validate())
		written, err := json.Marshal(c)
		require.NoError(t, err)
		var again Config
		require.NoError(t, json.Unmarshal(written, &again))
		require.Equal(t, c, again)
		fields := map[string]json.RawMessage{}
		require.NoError(t, json.Unmarshal(text, &fields))
		for _, within := range []string{"", "rope_scaling", "rope_parameters", "quantization_config"} {
			changed := maps.Clone(fields)
			if within == "" {
				changed["no_such_key"] = []byte("1")
			} else if value := string(fields[within]); strings.HasPrefix(value, "{") {
				comma := ","
				if strings.Trim(value, "{} \n\r\t") == "" {
					comma = ""
				}
				changed[within] = []byte(`{"no_such_key":1` + comma + value[1:])
			} else {
				continue
			}
			text, err := json.Marshal(changed)
			require.NoError(t, err)
			require.ErrorContains(t, json.Unmarshal(text, &again), `unknown key "no_such_key"`)
		}
	})
}
