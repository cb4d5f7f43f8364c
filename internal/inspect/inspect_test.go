package inspect

import (
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/checkpoint"
	"octet/fp8"
	"octet/internal/writers"
	"octet/train"
)

// config does not match the tensors of these tests: package inspect does not require it.
var config = checkpoint.Config{
	HiddenSize: 32, IntermediateSize: 48, NumHiddenLayers: 1, NumAttentionHeads: 2, NumKeyValueHeads: 1,
	VocabSize: 256, MaxPositionEmbeddings: 64, RMSNormEps: 1e-5, RopeTheta: 10000, HiddenAct: "silu", Gated: true, TorchDType: "float32",
}

func f32(name string, x ...float32) checkpoint.Tensor {
	return checkpoint.Tensor{Name: name, DType: fp8.F32, Shape: []int{len(x)}, Data: checkpoint.Bytes(fp8.AppendFloats(nil, x...))}
}

func codes(name string, d fp8.DType, b ...byte) checkpoint.Tensor {
	return checkpoint.Tensor{Name: name, DType: d, Shape: []int{len(b) / d.Size()}, Data: checkpoint.Bytes(b)}
}

// cast returns the tensors of a cast's scale state.
func cast(name string, scale float32, history ...float32) []checkpoint.Tensor {
	return []checkpoint.Tensor{f32(name+".amax_history", history...), f32(name+".scale", scale), f32(name+".scale_inv", 1/scale)}
}

func state(change func(*train.State)) train.State {
	s := train.State{Version: 2, Octet: "devel", Backend: "emu", Recipe: "fp8-smooth", Step: 3, Seed: 1}
	if change != nil {
		change(&s)
	}
	return s
}

func save(t *testing.T, dir string, step int, s train.State, model, optimizer []checkpoint.Tensor) *checkpoint.Checkpoint {
	t.Helper()
	path, err := checkpoint.Save(dir, step, checkpoint.Contents{Config: config, Model: model, Optimizer: optimizer, State: s})
	require.NoError(t, err)
	c, err := checkpoint.Open(path)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, c.Close()) })
	return c
}

func report(t *testing.T, s train.State, model, optimizer []checkpoint.Tensor) *Report {
	t.Helper()
	r, err := Checkpoint(save(t, t.TempDir(), s.Step, s, model, optimizer), func(int64, int64) {})
	require.NoError(t, err)
	return r
}

// TestMeasures checks every measure against known values.
func TestMeasures(t *testing.T) {
	nan, inf := float32(math.NaN()), float32(math.Inf(-1))
	long := make([]float32, 3*chunk+1)
	long[len(long)-1], long[chunk] = -7, nan
	blocks := codes("model.a.weight.m3", fp8.INT8, append(append([]byte{0x9c}, make([]byte, 127)...), 0x7f)...)
	r := report(t, state(nil),
		[]checkpoint.Tensor{f32("model.a.weight", 1, -2.5, 0, float32(math.Copysign(0, -1)), nan, inf, 2, 0), f32("model.long", long...), f32("none")},
		[]checkpoint.Tensor{
			codes("model.a.weight.master", fp8.F16, 0x00, 0x3c, 0x00, 0xc0), f32("model.a.weight.scale_inv", 0.25), // 1, -2
			codes("model.a.weight.m1", fp8.E4M3, 0x7e, 0x00, 0x7f), f32("model.a.weight.m1.scale_inv", 0.5), // 448, 0, NaN
			codes("model.a.weight.m2", fp8.E5M2, 0x7b, 0x7c), f32("model.a.weight.m2.scale_inv", 1, 2), // 57344, infinity; two scales
			blocks, f32("model.a.weight.m3.scale_inv", 0.5, 0.25), // -100 in the first block, 127 in the second
			codes("optimizer.step", fp8.I32, 3, 0, 0, 0),
		})
	got := map[string]Tensor{}
	for _, x := range r.Tensors {
		got[x.Name] = x
	}
	for _, want := range []struct {
		name        string
		amax, zeros float64 // -1: nil
		notFinite   int64
		isScale     bool
	}{
		{"model.a.weight", 2.5, 3. / 8, 2, false},
		{"model.long", 7, 3 * chunk / float64(3*chunk+1) * (1 - 1./(3*chunk)), 1, false},
		{"none", -1, -1, 0, false},
		{"model.a.weight.master", 0.5, 0, 0, false},
		{"model.a.weight.scale_inv", 0.25, 0, 0, true},
		{"model.a.weight.m1", 224, 1. / 3, 1, false},
		{"model.a.weight.m2", -1, 0, 1, false},
		{"model.a.weight.m3", 50, 127. / 129, 0, false},
		{"optimizer.step", -1, -1, 0, false},
	} {
		x, ok := got[want.name]
		require.True(t, ok, want.name)
		number := func(x *writers.Float) float64 {
			if x == nil {
				return -1
			}
			return float64(*x)
		}
		require.Equal(t, want.amax, number(x.Amax), want.name)
		require.InDelta(t, want.zeros, number(x.Zeros), 1e-12, want.name)
		require.Equal(t, want.notFinite, x.NotFinite, want.name)
		require.Equal(t, want.isScale, x.IsScale(), want.name)
	}
	require.Equal(t, checkpoint.ModelFile, got["model.long"].File)
	require.Equal(t, checkpoint.OptimizerFile, got["optimizer.step"].File)
	require.Len(t, r.Health, 4, "%q", r.Health)
}

func TestCasts(t *testing.T) {
	r := report(t, state(nil), nil, append(cast("layers.0.mlp.input.e4m3", 64, 3.5, 0, 7, 1.75), cast("layers.0.mlp.up_proj.grad.e5m2", 1, 0, 0)...))
	require.Len(t, r.Casts, 2)
	c := r.Casts[0]
	c.history = nil
	require.Equal(t, Cast{
		Name: "layers.0.mlp.input.e4m3", Scale: 64, ScaleInv: 1. / 64, Newest: 3.5, Lowest: 1.75, Highest: 7,
		Updates: 3, Window: 4, Fill: 0.5, format: fp8.E4M3,
	}, c)
	require.Zero(t, r.Casts[1].Highest)
	require.Zero(t, r.Casts[1].Updates)

	for want, optimizer := range map[string][]checkpoint.Tensor{
		`there is no tensor "a.e4m3.scale"`:              {f32("a.e4m3.amax_history", 1)},
		`the name has no number format`:                  cast("a.x", 1, 1),
		"0 amaxes, 1 scales and 1 inverses":              cast("a.e4m3", 1),
		"a.e4m3.amax_history is i32 [1]: expected a few": {codes("a.e4m3.amax_history", fp8.I32, 0, 0, 0, 0)},
	} {
		_, err := Checkpoint(save(t, t.TempDir(), 3, state(nil), nil, optimizer), func(int64, int64) {})
		require.ErrorContains(t, err, want)
	}
}

// Each problem is reported by name, and nothing else is.
func TestHealth(t *testing.T) {
	nan := float32(math.NaN())
	const name = "layers.0.mlp.input.e4m3"
	healthy := cast(name, 64, 3.5, 3)
	for _, c := range []struct {
		want      string
		state     func(*train.State)
		model     []checkpoint.Tensor
		optimizer []checkpoint.Tensor
	}{
		{want: "", optimizer: healthy},
		{want: "", optimizer: cast("layers.0.mlp.up_proj.weight.e4m3", 64, 8, 7)},
		{want: "", optimizer: cast(name, 1, 0, 0), state: func(s *train.State) { s.Step = 0 }},
		{want: "", optimizer: []checkpoint.Tensor{codes("a.m1", fp8.E4M3, 0, 1), f32("b.m1", 0, 0), f32("c.grad", 0, 0)}},
		{want: "the last 2 steps were skipped: their gradients were not finite", state: func(s *train.State) { s.Skipped = 2 }},
		{want: "the run rewound 1 times after loss spikes", state: func(s *train.State) { s.Rewinds = 1 }},
		{want: "a: 1 of 2 values are not finite", model: []checkpoint.Tensor{f32("a", nan, 1)}},
		{want: "a.m2: 67% of its values are zero: e5m2 cannot hold them beside the largest value", optimizer: []checkpoint.Tensor{codes("a.m2", fp8.E5M2, 0, 0x80, 1)}},
		{want: name + ": an amax in its history is -1", optimizer: cast(name, 64, 3, -1)},
		{want: name + ": its scale is 0", optimizer: []checkpoint.Tensor{f32(name+".amax_history", 1), f32(name+".scale", 0), f32(name+".scale_inv", 1)}},
		{want: name + ": its scale 2 and its scale_inv 0.25 are not each other's inverse", optimizer: []checkpoint.Tensor{f32(name+".amax_history", 1), f32(name+".scale", 2), f32(name+".scale_inv", 0.25)}},
		{want: name + ": its scale 8.507059e+37 is at the limit of the range of scales", optimizer: cast(name, 0x1p126, 0x1p-120, 0x1p-120)},
		{want: name + ": its newest amax 8 times its scale 64 exceeds the largest e4m3 value: the cast saturates", optimizer: cast(name, 64, 8, 7)},
		{want: name + ": only zeros were cast in the last 2 updates", optimizer: cast(name, 64, 0, 0)},
		{want: name + ": its amax grew from at most 0.125 to 3.5 in one update", optimizer: cast(name, 64, 3.5, 0.125, 0.0625)},
	} {
		r := report(t, state(c.state), c.model, c.optimizer)
		require.Equal(t, c.want, strings.Join(r.Health, "; "))
	}
	// NaN is null in JSON, also in a history.
	r := report(t, state(nil), nil, []checkpoint.Tensor{f32(name+".amax_history", nan, 1), f32(name+".scale", nan), f32(name+".scale_inv", 1)})
	require.Equal(t, []string{name + ".amax_history: 1 of 2 values are not finite", name + ".scale: 1 of 1 values are not finite", name + ": an amax in its history is NaN"}, r.Health)
	text, err := json.Marshal(r)
	require.NoError(t, err)
	require.Contains(t, string(text), `"scale":null,"scale_inv":1,"newest":null`)
}

// Model reports on a folder that other commands refuse, and says what is wrong with it.
func TestForeignModel(t *testing.T) {
	dir, config := t.TempDir(), config
	config.HiddenAct = "mish"
	text, err := json.Marshal(config)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(dir, checkpoint.ConfigFile), text, 0o600))
	c := save(t, t.TempDir(), 3, state(nil), []checkpoint.Tensor{f32("model.embed_tokens.weight", 1, 2)}, nil)
	require.NoError(t, os.Rename(filepath.Join(c.Path, checkpoint.ModelFile), filepath.Join(dir, checkpoint.ModelFile)))
	r, err := Model(dir, func(int64, int64) {})
	require.NoError(t, err)
	require.Len(t, r.Tensors, 1)
	require.Len(t, r.Health, 2)
	require.Contains(t, r.Health[1], `config.json: hidden_act: unknown activation "mish": this program has swiglu`)
	require.Contains(t, r.Health[0], `tensor "model.embed_tokens.weight" has the shape [2], but the model in config.json needs [256 32]`)
}
