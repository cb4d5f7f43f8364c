package train

import (
	"bytes"
	"reflect"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/backend"
	"octet/checkpoint"
	"octet/nn"
	"octet/recipe"
)

// The error names every field that differs by its configuration key.
func TestSameShape(t *testing.T) {
	have := HFConfig(Default())
	require.NoError(t, sameShape(have, have))
	for i := range reflect.TypeOf(have).NumField() {
		other := have
		switch f := reflect.ValueOf(&other).Elem().Field(i); f.Kind() {
		case reflect.Int:
			f.SetInt(f.Int() + 1)
		case reflect.Float64:
			f.SetFloat(f.Float() + 1)
		case reflect.Bool:
			f.SetBool(!f.Bool())
		case reflect.Struct: // Norms, Experts, RopeScaling
			switch first := f.Field(0); first.Kind() {
			case reflect.Int:
				first.SetInt(4)
			case reflect.Float64:
				first.SetFloat(4)
			default:
				first.SetString("post")
			}
		default:
			f.SetString("gelu")
		}
		switch name := reflect.TypeOf(have).Field(i).Name; name {
		case "MaxPositionEmbeddings", "TorchDType", "FP8":
			require.NoError(t, sameShape(have, other), name)
		default:
			require.ErrorContains(t, sameShape(have, other), "its config.json has model.", name)
		}
	}
	want := have
	have.Experts, want.Experts = checkpoint.Experts{Experts: 4, PerToken: 1}, checkpoint.Experts{Experts: 4, PerToken: 2}
	require.ErrorContains(t, sameShape(have, want), "has model.experts_per_token 1, not 2")
	have.Experts = checkpoint.Experts{}
	other := have
	other.HiddenAct, other.NumHiddenLayers = "gelu", 5
	require.ErrorContains(t, sameShape(other, have), "has model.layers 5, not 3, model.activation gelu, not swiglu")
}

// The tensors that config.json implies are the parameters of the model.
func TestLayoutMatchesTheModel(t *testing.T) {
	for _, activation := range nn.Activations() {
		for _, tied := range []bool{false, true} {
			c := Default()
			c.Model.QKVBias, c.Model.HeadDim = tied, 48
			c.Model.Activation, c.Model.Tied, c.Model.Vocab, c.Model.KVHeads = string(activation), tied, 250, 1
			bf16, err := recipe.Lookup("bf16")
			require.NoError(t, err)
			m, err := nn.New(c.ModelConfig(), bf16, backend.NewVars())
			require.NoError(t, err)
			want := map[string][]int{}
			for _, p := range m.Params {
				want[p.Name] = append([]int{p.Rows}, p.Shape[1:]...)
			}
			got := map[string][]int{}
			for name, shape := range HFConfig(c).Layout() {
				require.NotContains(t, got, name)
				got[name] = shape
			}
			require.Equal(t, want, got)
		}
	}
}

// The limits of training also apply to Hugging Face models.
func TestFromHFHasLimits(t *testing.T) {
	c := HFConfig(Default())
	got, err := FromHF(c)
	require.NoError(t, err)
	want := Default().ModelConfig()
	want.Activation, want.InitStd = nn.SwiGLU, 0.02
	require.Equal(t, want, got)
	for want, edit := range map[string]func(*checkpoint.Config){
		"num_hidden_layers = 1025: octet supports at most 1024": func(c *checkpoint.Config) { c.NumHiddenLayers = maxLayers + 1 },
		"parameters, more than the supported":                   func(c *checkpoint.Config) { c.HiddenSize, c.IntermediateSize = maxSize, maxSize },
		"rotary embeddings need an even head size":              func(c *checkpoint.Config) { c.NumAttentionHeads, c.NumKeyValueHeads = c.HiddenSize, 1 },
		"model.rope_theta = 0.5":                                func(c *checkpoint.Config) { c.RopeTheta = 0.5 },
	} {
		changed := c
		edit(&changed)
		_, err := FromHF(changed)
		require.ErrorContains(t, err, want)
	}
}

// Resume and model.init reject a checkpoint with a tensor of another shape or with
// non-finite weights; the error names the tensor.
func TestInvalidTensorsAreRejected(t *testing.T) {
	for _, name := range []string{"bf16", "fp8-smooth"} { // masters in FP32 and in FP16
		tr := newTrainer(t, small(t, name), 1, false)
		steps(t, tr, 1)
		for _, c := range []struct {
			name string
			edit func(*checkpoint.Tensor, []byte)
			want string
			init bool // rejected by model.init too
		}{
			{"model.layers.1.mlp.up_proj.weight", func(x *checkpoint.Tensor, _ []byte) { slices.Reverse(x.Shape) }, "has the shape", true},
			{"model.layers.1.mlp.up_proj.weight", func(x *checkpoint.Tensor, _ []byte) { x.Name = "model.layers.1.mlp.up_proj.bias" }, "there is no tensor", true},
			{"model.norm.weight", func(_ *checkpoint.Tensor, raw []byte) { copy(raw[4*7:], []byte{0, 0, 0xc0, 0x7f}) }, `tensor "model.norm.weight" is damaged: element 7 is NaN`, true},
			{"model.layers.1.mlp.up_proj.weight.master", func(_ *checkpoint.Tensor, raw []byte) { copy(raw[2*9:], []byte{0, 0x7c}) }, `tensor "model.layers.1.mlp.up_proj.weight.master" is damaged: element 9 is +Inf`, false},
		} {
			contents, err := tr.Contents("test", "emu")
			require.NoError(t, err)
			found := false
			for _, list := range [][]checkpoint.Tensor{contents.Model, contents.Optimizer} {
				for i := range list {
					if x := &list[i]; x.Name == c.name {
						var raw bytes.Buffer
						require.NoError(t, x.Data(&raw))
						x.Shape = slices.Clone(x.Shape)
						c.edit(x, raw.Bytes())
						x.Data, found = checkpoint.Bytes(raw.Bytes()), true
					}
				}
			}
			if !found { // FP32 masters are in the model file
				require.Equal(t, "bf16", name)
				continue
			}
			path, err := checkpoint.Save(t.TempDir(), tr.StepsDone(), contents)
			require.NoError(t, err)
			saved, err := checkpoint.Open(path)
			require.NoError(t, err)
			require.ErrorContains(t, newTrainer(t, small(t, name), 1, false).Restore(t.Context(), saved), c.want)
			require.NoError(t, saved.Close())
			err = newTrainer(t, small(t, name), 1, false).InitFrom(t.Context(), path)
			if c.init {
				require.ErrorContains(t, err, "model.init: "+path)
				require.ErrorContains(t, err, c.want)
			} else {
				require.NoError(t, err)
			}
		}
	}
}

// The shape of a config.json is that of the model that has it.
func TestSetShape(t *testing.T) {
	for _, edit := range []func(*Model){
		func(*Model) {},
		func(m *Model) {
			m.Layers, m.Dim, m.Heads, m.KVHeads, m.FFN, m.Vocab, m.Tied = 5, 96, 6, 2, 80, 999, true
		},
		func(m *Model) { m.RopeTheta, m.RopeScaling, m.NormEps = 5e5, []float64{8, 1, 4, 8192}, 1e-6 },
		func(m *Model) { m.RopeScaling, m.HeadDim, m.QKVBias = []float64{2}, 48, true },
		func(m *Model) { m.QKNorm, m.Activation = "learned", "gelu" },
		func(m *Model) { m.Norm, m.FinalNorm, m.EmbedScale = "post", false, 3 },
		func(m *Model) { m.LayerScale, m.QKNorm = new(1.0), "frozen" },
		func(m *Model) { m.Experts, m.ExpertsPerToken, m.RouterAuxLoss = 4, 3, 0.5 },
	} {
		want := Default()
		edit(&want.Model)
		got := Default()
		got.Model.RopeScaling, got.Model.LayerScale = []float64{1, 2}, new(7.0) // are forgotten
		got.Model.SetShape(HFConfig(want))
		require.Equal(t, HFConfig(want), HFConfig(got))
		require.Equal(t, want.Model, got.Model)
	}
}
