package cli

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"octet/checkpoint"
	"octet/internal/hostmem"
)

// header is the header of a safetensors file.
type header map[string]struct {
	DType   string   `json:"dtype"`
	Shape   []int    `json:"shape"`
	Offsets [2]int64 `json:"data_offsets"`
}

// rewrite changes the tensors of a model folder.
func rewrite(t *testing.T, dir string, edit func(h header, data []byte) []byte) {
	t.Helper()
	name := filepath.Join(dir, checkpoint.ModelFile)
	file, err := os.ReadFile(name)
	require.NoError(t, err)
	start := 8 + binary.LittleEndian.Uint64(file)
	h, fields := header{}, map[string]json.RawMessage{}
	require.NoError(t, json.Unmarshal(file[8:start], &fields))
	delete(fields, "__metadata__")
	text, err := json.Marshal(fields)
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(text, &h))
	data := edit(h, file[start:])
	text, err = json.Marshal(h)
	require.NoError(t, err)
	file = append(binary.LittleEndian.AppendUint64(nil, uint64(len(text))), text...)
	require.NoError(t, os.WriteFile(name, append(file, data...), 0o600))
}

// Every command that computes with a model refuses a foreign one that Octet would compute
// wrongly: with status 2 and one sentence that names the key or tensor.
func TestForeignModels(t *testing.T) {
	text := corpus(t, 20_000)
	dir := filepath.Join(t.TempDir(), "run")
	succeed(t, trainArgs(text, dir, 20, "--recipe", "bf16")...)
	const up = "model.layers.0.mlp.up_proj.weight"
	key := func(name, value string) func(string) {
		return func(hf string) {
			file := filepath.Join(hf, checkpoint.ConfigFile)
			config := strings.Replace(read(t, file), "{", fmt.Sprintf("{%q: %s,", name, value), 1)
			require.NoError(t, os.WriteFile(file, []byte(config), 0o600))
		}
	}
	tensors := func(edit func(h header, data []byte) []byte) func(string) {
		return func(hf string) { rewrite(t, hf, edit) }
	}
	add := func(name string) func(string) {
		return tensors(func(h header, data []byte) []byte {
			x := h["model.norm.weight"]
			x.Offsets = [2]int64{int64(len(data)), int64(len(data)) + 4*32}
			h[name] = x
			return append(data, make([]byte, 4*32)...)
		})
	}
	for _, test := range []struct {
		edit func(hf string)
		want string
	}{
		{key("sliding_window", "128"), "config.json: sliding_window = 128"},
		{key("rope_scaling", `{"rope_type":"yarn","factor":8}`), `config.json: rope_scaling: rope_type = "yarn": octet supports default, linear and llama3 only`},
		{key("final_logit_softcapping", "30"), `config.json: unknown key "final_logit_softcapping"`},
		{tensors(func(h header, data []byte) []byte {
			x := h[up]
			x.Shape[0], x.Shape[1] = x.Shape[1], x.Shape[0]
			return data
		}), `tensor "` + up + `" has the shape [32 48]`},
		{tensors(func(h header, data []byte) []byte {
			h["model.layers.0.mlp.up.weight"] = h[up]
			delete(h, up)
			return data
		}), `there is no tensor "` + up + `"`},
		{add("model.layers.0.self_attn.q_proj.bias"), `does not read tensor "model.layers.0.self_attn.q_proj.bias"`},
		{add("model.layers.7.input_layernorm.weight"), `does not read tensor "model.layers.7.input_layernorm.weight"`},
		{tensors(func(h header, data []byte) []byte {
			copy(data[h[up].Offsets[0]+4*40:], []byte{0, 0, 0x80, 0x7f})
			return data
		}), `tensor "` + up + `" is damaged: element 40 is +Inf`},
	} {
		hf, fresh := filepath.Join(t.TempDir(), "hf"), filepath.Join(t.TempDir(), "fresh")
		bareWeights(t, dir, hf)
		test.edit(hf)
		for _, args := range [][]string{
			{"eval", hf, "--data", text},
			{"generate", hf, "--prompt", "the "},
			{"export", hf, "--out", fresh},
			trainArgs(text, fresh, 2, "--recipe", "bf16", "model.init="+hf),
		} {
			status, stdout, stderr := octet(args...)
			require.Equal(t, exitInput, status, "%v\n%s", args, stderr)
			require.Empty(t, stdout)
			requireOneSentence(t, strings.TrimPrefix(stderr, firstLines(stderr)))
			require.Contains(t, stderr, test.want, args)
			require.NoDirExists(t, fresh)
		}
	}
}

// sparse writes a model whose tensors are holes of a sparse file.
func sparse(t *testing.T, c checkpoint.Config) (dir string) {
	t.Helper()
	dir = t.TempDir()
	config, err := json.Marshal(c)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(dir, checkpoint.ConfigFile), config, 0o600))
	h, end := header{}, int64(0)
	for name, shape := range c.Layout() {
		x := h[name]
		x.DType, x.Shape = "BF16", shape
		size := 2 * checkpoint.Tensor{Shape: shape}.Elems()
		x.Offsets = [2]int64{end, end + size}
		h[name], end = x, end+size
	}
	text, err := json.Marshal(h)
	require.NoError(t, err)
	f, err := os.Create(filepath.Join(dir, checkpoint.ModelFile))
	require.NoError(t, err)
	_, err = f.Write(append(binary.LittleEndian.AppendUint64(nil, uint64(len(text))), text...))
	require.NoError(t, err)
	if err := f.Truncate(8 + int64(len(text)) + end); err != nil {
		require.NoError(t, f.Close())
		t.Skipf("no sparse files here: %v", err)
	}
	require.NoError(t, f.Close())
	return dir
}

// A small folder that describes a large model is refused before memory of that model's size
// is allocated.
func TestModelsBeyondTheMachine(t *testing.T) {
	large := checkpoint.Config{
		HiddenSize: 1 << 16, IntermediateSize: 1 << 16, NumHiddenLayers: 16, NumAttentionHeads: 512, NumKeyValueHeads: 512,
		VocabSize: 256, MaxPositionEmbeddings: 64, RMSNormEps: 1e-5, RopeTheta: 1e4, HiddenAct: "silu", Gated: true,
	}
	deep := large
	deep.HiddenSize, deep.IntermediateSize, deep.NumHiddenLayers, deep.NumAttentionHeads, deep.NumKeyValueHeads = 16, 16, 2_000, 1, 1
	text, out := corpus(t, 2_000), filepath.Join(t.TempDir(), "out")
	for _, test := range []struct {
		config checkpoint.Config
		want   string
	}{
		{deep, "num_hidden_layers = 2000: octet supports at most 1024"},
		{large, ` needs \d\S* [GT]B of memory and .* free: use `},
	} {
		if _, _, ok := hostmem.Free(); !ok && test.config == large {
			t.Skip("the free memory is unknown here")
		}
		dir := sparse(t, test.config)
		for _, args := range [][]string{{"eval", dir, "--data", text}, {"generate", dir, "--prompt", "the "}, {"export", dir, "--out", out}} {
			status, stdout, stderr := octet(args...)
			require.Equal(t, exitInput, status, "%v\n%s", args, stderr)
			require.Empty(t, stdout)
			requireOneSentence(t, stderr)
			require.Regexp(t, test.want, stderr)
			require.NoDirExists(t, out)
		}
	}
}

// A long evaluation shows its progress on standard error.
func TestEvalShowsItsProgress(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "run")
	succeed(t, trainArgs(corpus(t, 20_000), dir, 2)...)
	want, quiet := succeed(t, "eval", dir, "--json")
	require.Empty(t, quiet)
	defer func(d time.Duration) { progressAfter = d }(progressAfter)
	progressAfter = 0
	got, stderr := succeed(t, "eval", dir, "--json")
	require.Equal(t, want, got)
	require.Regexp(t, regexp.MustCompile(`^\d+ of 1,999 tokens  (loss \d\.\d{4}  [\d,]+ tok/s  ETA \d:\d\d|ETA -:--)\n(?s:.*)1,999 of 1,999 tokens  loss .*\n$`), stderr)
}
