package export

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"math"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/checkpoint"
	"octet/fp8"
	"octet/infer"
	"octet/internal/disk"
	"octet/safetensors"
)

const (
	dim = 16
	ffn = 32
)

// model returns a model of one layer whose weights are small fractions, exact in every format
// but FP8.
func model() Model {
	m := Model{
		Config: checkpoint.Config{
			HiddenSize: dim, IntermediateSize: ffn, NumHiddenLayers: 1, NumAttentionHeads: 2, NumKeyValueHeads: 2,
			VocabSize: 32, MaxPositionEmbeddings: 64, RMSNormEps: 1e-5, RopeTheta: 1e4, HiddenAct: "silu", Gated: true,
		},
		ScaleInv: func(name string) (float32, error) {
			if name == "layers.0.self_attn.input" {
				return 0.25, nil
			}
			return 0.5, nil
		},
	}
	weights := map[string][]float32{}
	for i, t := range []checkpoint.Tensor{
		{Name: "model.embed_tokens.weight", Shape: []int{32, dim}},
		{Name: "model.layers.0.input_layernorm.weight", Shape: []int{dim}},
		{Name: "model.layers.0.self_attn.q_proj.weight", Shape: []int{dim, dim}},
		{Name: "model.layers.0.mlp.up_proj.weight", Shape: []int{ffn, dim}},
		{Name: "model.layers.0.mlp.gate_proj.weight", Shape: []int{ffn, dim}},
		{Name: "model.layers.0.mlp.down_proj.weight", Shape: []int{dim, ffn}},
	} {
		n := 1
		for _, d := range t.Shape {
			n *= d
		}
		x := make([]float32, n)
		for j := range x {
			x[j] = float32((j*7+i)%31-15) / 64
		}
		weights[t.Name], m.List = x, append(m.List, t)
	}
	m.Param = func(name string) ([]float32, error) { return append([]float32(nil), weights[name]...), nil }
	c := make([]float32, ffn)
	for i := range c {
		c[i] = float32(math.Exp2(float64(i%5 - 2)))
	}
	m.Smooth = []infer.Smoothing{{C: c, HiddenScaleInv: 0.125}}
	return m
}

func read(t *testing.T, f *safetensors.File, name string) (dtype string, raw []byte) {
	t.Helper()
	x, ok := f.Tensor(name)
	require.True(t, ok, name)
	raw = make([]byte, x.Size)
	require.NoError(t, f.ReadInto(name, raw))
	return x.DType, raw
}

func open(t *testing.T, dir string) *safetensors.File {
	t.Helper()
	f, err := safetensors.Open(filepath.Join(dir, "model.safetensors"))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, f.Close()) })
	return f
}

// The smoothing scales are folded into the rows of up_proj and the columns of down_proj only.
func TestFolds(t *testing.T) {
	m := model()
	dir := filepath.Join(t.TempDir(), "out")
	require.NoError(t, Write(t.Context(), dir, "fp32", m, nil))
	f := open(t, dir)
	for _, tensor := range m.List {
		want, err := m.Param(tensor.Name)
		require.NoError(t, err)
		for i := range want {
			switch tensor.Name {
			case "model.layers.0.mlp.up_proj.weight":
				want[i] /= m.Smooth[0].C[i/dim]
			case "model.layers.0.mlp.down_proj.weight":
				want[i] *= m.Smooth[0].C[i%ffn]
			}
		}
		dtype, raw := read(t, f, tensor.Name)
		require.Equal(t, "F32", dtype)
		for i := range want {
			require.Equal(t, want[i], math.Float32frombits(binary.LittleEndian.Uint32(raw[4*i:])), "%s %d", tensor.Name, i)
		}
	}
	c, tensors, err := checkpoint.OpenModel(dir)
	require.NoError(t, err)
	require.NoError(t, tensors.Close())
	require.Equal(t, dim, c.HiddenSize)
	require.Equal(t, "float32", c.TorchDType)
}

// A file may have tensors of layers that the model does not have.
func TestUnknownLayers(t *testing.T) {
	m := model()
	for _, layer := range []string{"-1", "1", "00", "+0", "99999999999999999999"} {
		for _, module := range []string{"up_proj", "down_proj"} {
			m.List = append(m.List, checkpoint.Tensor{Name: "model.layers." + layer + ".mlp." + module + ".weight", Shape: []int{ffn, dim}})
		}
	}
	param := m.Param
	m.Param = func(name string) ([]float32, error) {
		if x, err := param(name); x != nil || err != nil {
			return x, err
		}
		return make([]float32, ffn*dim), nil
	}
	for _, format := range Formats {
		require.NoError(t, Write(t.Context(), filepath.Join(t.TempDir(), "out"), format, m, nil))
	}
}

// Codes times their scale are the folded weights, up to rounding; tensors other than linear
// layers of the decoder are BF16.
func TestFP8(t *testing.T) {
	m := model()
	dir := filepath.Join(t.TempDir(), "out")
	require.NoError(t, Write(t.Context(), dir, "fp8", m, nil))
	f := open(t, dir)
	dtype, _ := read(t, f, "model.embed_tokens.weight")
	require.Equal(t, "BF16", dtype)
	for module, input := range map[string]float32{"self_attn.q_proj": 0.25, "mlp.up_proj": 0.5, "mlp.down_proj": 0.125} {
		name := "model.layers.0." + module
		want, err := m.Folded(name + ".weight")
		require.NoError(t, err)
		dtype, codes := read(t, f, name+".weight")
		require.Equal(t, "F8_E4M3", dtype)
		_, raw := read(t, f, name+".weight_scale")
		scale := math.Float32frombits(binary.LittleEndian.Uint32(raw))
		for i, x := range want {
			require.InDelta(t, x, fp8.E4M3.Float32(uint32(codes[i]))*scale, math.Abs(float64(x))/16+1e-9, "%s %d", module, i)
		}
		_, raw = read(t, f, name+".input_scale")
		require.Equal(t, input, math.Float32frombits(binary.LittleEndian.Uint32(raw)), module)
	}
	text, err := os.ReadFile(filepath.Join(dir, "config.json"))
	require.NoError(t, err)
	var config struct {
		Quantization struct {
			Method string `json:"quant_method"`
		} `json:"quantization_config"`
	}
	require.NoError(t, json.Unmarshal(text, &config))
	require.Equal(t, "compressed-tensors", config.Quantization.Method)
}

// A folder appears complete or not at all, and none is overwritten.
func TestCompleteOrAbsent(t *testing.T) {
	parent := t.TempDir()
	dir := filepath.Join(parent, "out")
	m := model()
	require.ErrorContains(t, Write(t.Context(), dir, "fp4", m, nil), "use one of fp32, bf16, fp8")
	good := m.Param
	m.Param = func(name string) ([]float32, error) {
		if name == "model.layers.0.mlp.gate_proj.weight" {
			return nil, errors.New("the disk is gone")
		}
		return good(name)
	}
	require.EqualError(t, Write(t.Context(), dir, "bf16", m, nil), "the disk is gone", "the cause names the tensor itself")
	left, err := os.ReadDir(parent)
	require.NoError(t, err)
	require.Empty(t, left)
	m.Param = good

	// A failed change to the disk leaves nothing either, up to the rename.
	failing := 0
	for moved := false; !moved; failing++ {
		n := 0
		restore := disk.Intercept(func(c disk.Change) error {
			if n++; n-1 == failing {
				return syscall.EIO
			}
			moved = moved || c.Op == disk.Rename && !strings.HasSuffix(c.Path, ".json.partial")
			return c.Do()
		})
		err := Write(t.Context(), dir, "bf16", m, nil)
		restore()
		require.ErrorIs(t, err, syscall.EIO)
		if !moved {
			left, err := os.ReadDir(parent)
			require.NoError(t, err)
			require.Empty(t, left, "change %d failed", failing)
		}
	}
	require.Greater(t, failing, 10)
	require.ErrorContains(t, Write(t.Context(), dir, "bf16", m, nil), "exists already")
}

// An export that does not fit the file system is refused before any tensor is read.
func TestNoSpace(t *testing.T) {
	parent := t.TempDir()
	if _, ok := disk.Free(parent); !ok {
		t.Skip("the free space is unknown here")
	}
	m := model()
	m.List = append(m.List, checkpoint.Tensor{Name: "large", Shape: []int{1 << 30, 1 << 24}})
	m.Param = func(string) ([]float32, error) { panic("a tensor was read") }
	for format, size := range map[string]string{"fp32": "72 PB", "bf16": "36 PB"} {
		err := Write(t.Context(), filepath.Join(parent, "out"), format, m, nil)
		require.ErrorContains(t, err, " needs "+size+" of disk and its file system has ")
	}
	left, err := os.ReadDir(parent)
	require.NoError(t, err)
	require.Empty(t, left)
}

// Size, and the final progress, is the size of the file without its header.
func TestSize(t *testing.T) {
	for _, format := range Formats {
		dir, written := filepath.Join(t.TempDir(), "out"), int64(0)
		m := model()
		require.NoError(t, Write(t.Context(), dir, format, m, func(n int64) {
			require.GreaterOrEqual(t, n, written)
			written = n
		}))
		info, err := os.Stat(filepath.Join(dir, "model.safetensors"))
		require.NoError(t, err)
		sizes := int64(0)
		for _, x := range open(t, dir).Tensors() {
			sizes += x.Size
		}
		require.Equal(t, sizes, m.Size(format))
		require.Equal(t, m.Size(format), written)
		require.Greater(t, info.Size(), written)
	}
}

// A cancelled context stops the export between tensors and between the pieces of one; no file
// is left.
func TestCancelled(t *testing.T) {
	parent := t.TempDir()
	m := model()
	for stop := range 2 * len(m.List) {
		ctx, cancel := context.WithCancel(t.Context())
		reads := 0
		m.Param = func(name string) ([]float32, error) {
			if reads++; reads > stop {
				cancel()
				require.LessOrEqual(t, reads, stop+1, "Write continued")
			}
			return model().Param(name)
		}
		err := Write(ctx, filepath.Join(parent, "out"), "fp8", m, nil)
		cancel()
		if reads <= stop {
			require.NoError(t, err)
			break
		}
		require.ErrorIs(t, err, context.Canceled)
		left, err := os.ReadDir(parent)
		require.NoError(t, err)
		require.Empty(t, left)
	}
}

// All bytes and names in the folder are synced before the folder gets its name, and the name
// before Write returns: after a power cut the folder is complete or absent.
func TestPowerCut(t *testing.T) {
	parent := t.TempDir()
	dir := filepath.Join(parent, "on", "the way", "out")
	unsynced := map[string]bool{}
	defer disk.Intercept(func(c disk.Change) error {
		in := filepath.Dir(c.Path)
		switch c.Op {
		case disk.Rename:
			require.False(t, unsynced[c.Path], c.Path)
			if in == filepath.Dir(dir) {
				require.Empty(t, unsynced)
			}
			unsynced[in] = true
		case disk.Mkdir, disk.Create:
			unsynced[in], unsynced[c.Path] = true, true
		case disk.Write:
			unsynced[c.Path] = true
		case disk.Sync:
			delete(unsynced, filepath.Clean(c.Path))
		}
		return c.Do()
	})()
	require.NoError(t, Write(t.Context(), dir, "fp8", model(), nil))
	require.Empty(t, unsynced)
	require.FileExists(t, filepath.Join(dir, "config.json"))
}

// Write refuses values that are not finite after folding or rounding, and scales that are not
// positive.
func TestExportsFiniteNumbers(t *testing.T) {
	inf, nan := float32(math.Inf(1)), float32(math.NaN())
	set := func(tensor string, i int, x float32) func(*Model) {
		return func(m *Model) {
			param := m.Param
			m.Param = func(name string) ([]float32, error) {
				values, err := param(name)
				if name == tensor {
					values[i] = x
				}
				return values, err
			}
		}
	}
	const up, down = "model.layers.0.mlp.up_proj.weight", "model.layers.0.mlp.down_proj.weight"
	for _, c := range []struct {
		edit         func(*Model)
		format, want string
	}{
		{func(m *Model) { m.Smooth[0].C[2] = 0 }, "fp32", up + ": element "},
		{func(m *Model) { m.Smooth[0].C[2] = inf }, "fp32", down + ": element "},
		{set(down, 4, math.MaxFloat32), "fp32", down + ": element 4 is +Inf with its smoothing scale folded in"},
		{set("model.embed_tokens.weight", 7, math.MaxFloat32), "bf16", "model.embed_tokens.weight: element 7 is 3.4028235e+38, beyond what BF16 holds; use --format fp32"},
		{func(m *Model) { m.Smooth[0].HiddenScaleInv = 0 }, "fp8", down + ": the scale of its input is 0: expected a positive number"},
		{func(m *Model) { m.ScaleInv = func(string) (float32, error) { return nan, nil } }, "fp8", "the scale of its input is NaN"},
		{func(m *Model) { m.ScaleInv = func(string) (float32, error) { return -1, nil } }, "fp8", "the scale of its input is -1"},
	} {
		m := model()
		c.edit(&m)
		dir := filepath.Join(t.TempDir(), "out")
		require.ErrorContains(t, Write(t.Context(), dir, c.format, m, nil), c.want)
		require.NoDirExists(t, dir)
	}
}
