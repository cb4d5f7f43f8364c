package checkpoint

import (
	"bytes"
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
			require.Equal(t, wholeFiles[i], file.Name)
		}
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
