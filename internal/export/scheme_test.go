package export

import (
	"encoding/binary"
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/checkpoint"
	"octet/fp8"
	"octet/internal/ptq"
)

// The layout of pack-quantized, by hand: codes plus 8, eight in a little-endian I32, the first
// in its lowest bits.
func TestPack4(t *testing.T) {
	codes := []int8{-8, 7, 0, 1, -1, 2, 3, -3}
	m := ptq.Matrix{Rows: 1, Cols: 8, Group: 8}
	for _, c := range codes {
		m.Codes = append(m.Codes, uint8(c))
	}
	require.Equal(t, []byte{0xf0, 0x98, 0xa7, 0x5b}, pack4(m)) // 0x5ba798f0
}

const wide = 32 // the model's hidden_size

// exportScheme quantizes the model of a scheme that observes nothing and writes it.
func exportScheme(t *testing.T, name string) (m Model, dir string) {
	m = model()
	m.Config.HiddenSize, m.Config.IntermediateSize, m.List, m.Smooth = wide, 2*wide, nil, nil
	s, err := ptq.Lookup(name)
	require.NoError(t, err)
	for name, shape := range m.Config.Layout() {
		m.List = append(m.List, checkpoint.Tensor{Name: name, Shape: shape})
	}
	m.Param = func(name string) ([]float32, error) {
		i := slices.IndexFunc(m.List, func(t checkpoint.Tensor) bool { return t.Name == name })
		x := make([]float32, m.List[i].Elems())
		for j := range x {
			x[j] = float32(math.Sin(float64(j*(i+3)))) / 8
		}
		return x, nil
	}
	q, err := ptq.Quantize(t.Context(), s, ptq.Source{Config: m.Config, Param: m.Folded}, ptq.Options{})
	require.NoError(t, err)
	m = m.Quantize(q)
	dir = filepath.Join(t.TempDir(), "out")
	require.NoError(t, Write(t.Context(), dir, name, m, nil))
	return m, dir
}

// Codes times scales of the file are the weights that evaluation computes with; other tensors
// are those, too, in BF16.
func TestSchemes(t *testing.T) {
	for name, types := range map[string][3]string{
		"w8a8-fp8": {"weight", "F8_E4M3", "F32"}, "w8a8-int8": {"weight", "I8", "F32"}, "w4a16-g32-rtn": {"weight_packed", "I32", "BF16"},
	} {
		m, dir := exportScheme(t, name)
		f := open(t, dir)
		const module, cols = "model.layers.0.mlp.down_proj.", 2 * wide
		dtype, raw := read(t, f, module+types[0])
		require.Equal(t, types[1], dtype)
		dtype, rawScales := read(t, f, module+"weight_scale")
		require.Equal(t, types[2], dtype)
		scale, _ := f.Tensor(module + "weight_scale")
		groups := int(scale.Shape[1])
		require.Equal(t, []int64{wide, map[string]int64{"F32": 1, "BF16": 2}[types[2]]}, scale.Shape)
		scales := make([]float32, wide*groups)
		map[string]fp8.DType{"F32": fp8.F32, "BF16": fp8.BF16}[types[2]].Decode(scales, rawScales)
		w, err := m.Quantized.Weight(module + "weight")
		require.NoError(t, err)
		exact, err := m.Quantized.Param(module + "weight") // of W8A8 before the cast
		require.NoError(t, err)
		for i, v := range w.Values() {
			var x float32
			switch types[1] {
			case "F8_E4M3":
				x = fp8.E4M3.Float32(uint32(raw[i]))
			case "I8":
				x = float32(int8(raw[i]))
			case "I32":
				x = float32(binary.LittleEndian.Uint32(raw[i/8*4:])>>(i%8*4)&15) - 8
			}
			require.Equal(t, v, x*scales[i/cols*groups+i%cols*groups/cols], "%s %d", name, i)
			require.InDelta(t, exact[i], v, 0.005)
		}
		if types[0] == "weight_packed" {
			dtype, raw := read(t, f, module+"weight_shape")
			require.Equal(t, "I64", dtype)
			require.Equal(t, []byte{wide, 0, 0, 0, 0, 0, 0, 0, cols, 0, 0, 0, 0, 0, 0, 0}, raw)
		}
		_, raw = read(t, f, "model.norm.weight")
		x, norm := make([]float32, wide), []float32(nil)
		fp8.BF16.Decode(x, raw)
		norm, err = m.Param("model.norm.weight")
		require.NoError(t, err)
		require.Equal(t, norm, x)
		total := int64(0)
		for _, x := range f.Tensors() {
			total += x.Size
		}
		require.Equal(t, total, m.Size(name))
	}
}

// config.json says what compressed-tensors 0.20 reads.
func TestQuantizationConfig(t *testing.T) {
	for name, want := range map[string]string{
		"w8a8-fp8": `"format": "float-quantized", "config_groups": {"group_0": {"targets": ["Linear"],
			"weights": {"num_bits": 8, "type": "float", "strategy": "channel", "symmetric": true, "dynamic": false},
			"input_activations": {"num_bits": 8, "type": "float", "strategy": "token", "symmetric": true, "dynamic": true}}}`,
		"w8a8-int8": `"format": "int-quantized", "config_groups": {"group_0": {"targets": ["Linear"],
			"weights": {"num_bits": 8, "type": "int", "strategy": "channel", "symmetric": true, "dynamic": false},
			"input_activations": {"num_bits": 8, "type": "int", "strategy": "token", "symmetric": true, "dynamic": true}}}`,
		"w4a16-g32-rtn": `"format": "pack-quantized", "config_groups": {"group_0": {"targets": ["Linear"],
			"weights": {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32, "symmetric": true, "dynamic": false},
			"input_activations": null}}`,
	} {
		_, dir := exportScheme(t, name)
		text, err := os.ReadFile(filepath.Join(dir, "config.json"))
		require.NoError(t, err)
		var c map[string]json.RawMessage
		require.NoError(t, json.Unmarshal(text, &c))
		require.JSONEq(t, `{"quant_method": "compressed-tensors", "quantization_status": "compressed", "ignore": ["lm_head"], `+want+`}`, string(c["quantization_config"]), name)
		require.JSONEq(t, `"bfloat16"`, string(c["torch_dtype"]))
		_, _, err = checkpoint.OpenModel(dir)
		require.ErrorContains(t, err, "quantization_config: ", "octet does not read it")
	}
}

func TestCheckScheme(t *testing.T) {
	c := model().Config
	for name, want := range map[string]string{
		"w8a8-int8":     "",
		"w4a16-g128":    "quantization w4a16-g128: rows of model.layers.0.self_attn.q_proj.weight have 16 weights, which compressed-tensors cannot divide into groups of 128; use w4a16-g32, or w8a8-fp8",
		"w2a16-g128":    "quantization w2a16-g128 is for octet eval alone: an export has weights of 4 or 8 bits; use another, such as w4a16-g128",
		"w4a16-g32-rtn": "cannot divide into groups of 32",
	} {
		s, err := ptq.Lookup(name)
		require.NoError(t, err)
		if err = CheckScheme(s, c); want == "" {
			require.NoError(t, err)
			continue
		}
		require.ErrorContains(t, err, want)
	}
	c.HiddenSize, c.IntermediateSize = 64, 96
	s, err := ptq.Lookup("w4a16-g32")
	require.NoError(t, err)
	require.NoError(t, CheckScheme(s, c))
}
