package checkpoint

import (
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/fp8"
)

// modelOf returns all tensors of a config, in FP32 with the value 0.
func modelOf(c Config) (list []Tensor) {
	for name, shape := range c.Layout() {
		t := Tensor{Name: name, DType: fp8.F32, Shape: shape}
		t.Data = Bytes(make([]byte, 4*t.Elems()))
		list = append(list, t)
	}
	return list
}

// openModel writes tensors to a checkpoint and opens its model.
func openModel(t *testing.T, list []Tensor) *Tensors {
	t.Helper()
	path, err := Save(t.TempDir(), 1, Contents{Config: tiny, Model: list})
	require.NoError(t, err)
	_, tensors, err := OpenModel(path)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, tensors.Close()) })
	return tensors
}

func f32(name string, x ...float32) Tensor {
	return Tensor{name, fp8.F32, []int{len(x)}, Bytes(fp8.AppendFloats(nil, x...))}
}

// change returns an edit of a model that edits the named tensor and zeroes its data.
func change(name string, edit func(*Tensor)) func([]Tensor) []Tensor {
	return func(list []Tensor) []Tensor {
		i := slices.IndexFunc(list, func(t Tensor) bool { return t.Name == name })
		edit(&list[i])
		list[i].Data = Bytes(make([]byte, int(list[i].Elems())*list[i].DType.Size()))
		return list
	}
}

func add(more ...Tensor) func([]Tensor) []Tensor {
	return func(list []Tensor) []Tensor { return append(list, more...) }
}

func remove(name string) func([]Tensor) []Tensor {
	return func(list []Tensor) []Tensor {
		return slices.DeleteFunc(list, func(t Tensor) bool { return t.Name == name })
	}
}

const (
	up = "model.layers.0.mlp.up_proj.weight"
	q  = "model.layers.0.self_attn.q_proj"
)

// TestMatch checks both directions: every tensor of the config exists with its shape, and
// there are no others except those that change nothing.
func TestMatch(t *testing.T) {
	ungated := tiny
	ungated.HiddenAct, ungated.Gated = "relu", false
	tied := tiny
	tied.TieWordEmbeddings = true
	head := Tensor{headWeight, fp8.F32, []int{tiny.VocabSize, tiny.HiddenSize}, nil}
	head.Data = Bytes(make([]byte, 4*head.Elems()))
	otherHead := head
	last := make([]byte, 4*head.Elems())
	last[len(last)-1] = 1
	otherHead.Data = Bytes(last)
	shorter := f32(headWeight, 0)
	large := tied // two chunks of requireSameBytes
	large.VocabSize = 1024
	largeHead := Tensor{headWeight, fp8.F32, []int{large.VocabSize, large.HiddenSize}, Bytes(make([]byte, 2<<16))}
	otherLarge := largeHead
	otherLarge.Data = Bytes(append(make([]byte, 2<<16-1), 1))
	for _, c := range []struct {
		config Config
		edit   func([]Tensor) []Tensor
		want   string // empty: they match
	}{
		{tiny, add(), ""},
		{ungated, add(), ""},
		{tied, add(), ""},
		{tied, add(head), ""},
		{tied, add(otherHead), `tensor "lm_head.weight" differs from "model.embed_tokens.weight", but config.json has tie_word_embeddings = true`},
		{large, add(largeHead), ""},
		{large, add(otherLarge), `tensor "lm_head.weight" differs`},
		{tied, add(shorter), `tensor "lm_head.weight" differs`},
		{tiny, change(up, func(t *Tensor) { t.DType = fp8.BF16 }), ""},
		{tiny, change(up, func(t *Tensor) { t.DType = fp8.F16 }), ""},
		{tiny, add(f32("model.layers.0.self_attn.rotary_emb.inv_freq", 1, 2, 3, 4), f32("model.rotary_emb.inv_freq", 1, 0, 0, 0)), ""},
		{tiny, add(f32("model.rotary_emb.inv_freq", 1, 2, 3)), `tensor "model.rotary_emb.inv_freq" has the shape [3], but the model in config.json needs [4]: config.json and the weights are of different models`},
		{tiny, add(f32("model.layers.1.self_attn.rotary_emb.inv_freq", 1, 2)), `does not read tensor "model.layers.1.self_attn.rotary_emb.inv_freq"`},
		{tiny, change(up, func(t *Tensor) { slices.Reverse(t.Shape) }), `tensor "model.layers.0.mlp.up_proj.weight" has the shape [32 48], but the model in config.json needs [48 32]: config.json and the weights are of different models`},
		{tiny, change("model.norm.weight", func(t *Tensor) { t.Shape = []int{tiny.HiddenSize, 1} }), `"model.norm.weight" has the shape [32 1]`},
		{tiny, change(q+".weight", func(t *Tensor) { t.Shape = []int{32 * 32} }), "has the shape [1024]"},
		{tiny, remove(up), `there is no tensor "model.layers.0.mlp.up_proj.weight"`},
		{tiny, remove(headWeight), `there is no tensor "lm_head.weight"`},
		{tiny, add(f32(q+".bias", 1)), `the model in config.json does not read tensor "model.layers.0.self_attn.q_proj.bias": octet has no such parameter`},
		{tiny, add(f32("model.layers.0.self_attn.q_norm.weight", 1)), `does not read tensor "model.layers.0.self_attn.q_norm.weight": config.json and the weights are of different models`},
		{tiny, add(f32(q+".lora_A.weight", 1), f32(q+".lora_B.weight", 1), f32(q+".lora_C.weight", 1)), `nor 2 others: octet has no such parameter`},
		{tiny, add(f32("a.extra", 1), f32(q+".bias", 1)), `does not read tensor "model.layers.0.self_attn.q_proj.bias" nor 1 other: octet has no such parameter`},
		{tiny, add(f32("a.extra", 1)), `does not read tensor "a.extra": config.json and the weights are of different models; remove the tensor if it does not change what the model computes`},
		{tiny, add(f32(q+".lora_A.weight", 1), f32(q+".lora_B.weight", 1)), `does not read tensor "model.layers.0.self_attn.q_proj.lora_A.weight" nor 1 other: octet has no such parameter`},
		{tiny, add(f32("model.layers.1.mlp.up_proj.weight", 1)), `does not read tensor "model.layers.1.mlp.up_proj.weight"`},
		{tiny, add(f32(strings.Repeat("\n", 1000), 1)), `does not read tensor "\n\n`},
		{ungated, add(f32("model.layers.0.mlp.gate_proj.weight", 1)), `does not read tensor "model.layers.0.mlp.gate_proj.weight"`},
		{tiny, add(f32(q+".weight_scale", 1)), `does not read tensor "model.layers.0.self_attn.q_proj.weight_scale"`},
		{tiny, change(up, func(t *Tensor) { t.DType = fp8.E4M3 }), "is stored as e4m3, but config.json has no quantization_config"},
		{tiny, change(up, func(t *Tensor) { t.DType = fp8.E8M0 }), "is stored as e8m0: octet reads"},
		{tiny, change(up, func(t *Tensor) { t.DType = fp8.I32 }), "is stored as i32: octet reads"},
		{tiny, change("model.norm.weight", func(t *Tensor) { t.DType = fp8.E4M3 }), "is stored as e4m3: octet reads"},
	} {
		err := openModel(t, c.edit(modelOf(c.config))).Match(c.config)
		if c.want == "" {
			require.NoError(t, err)
			continue
		}
		require.ErrorContains(t, err, c.want)
		require.ErrorContains(t, err, ModelFile)
		require.NotContains(t, err.Error(), "\n")
		require.Less(t, len(err.Error()), 1500)
	}
	// Match must not allocate a list for a config with 2^24 layers.
	many := tiny
	many.NumHiddenLayers = maxSize
	require.ErrorContains(t, openModel(t, modelOf(tiny)).Match(many), `there is no tensor "model.layers.1.input_layernorm.weight"`)
}

// TestMatchFP8 checks that an FP8 linear layer has one positive scale. Octet's exports
// also have an input scale.
func TestMatchFP8(t *testing.T) {
	c := tiny
	c.FP8 = true
	// inFP8 makes all linear layers FP8 and adds their scales, except q_proj's: pass that
	// in more.
	inFP8 := func(more ...Tensor) func([]Tensor) []Tensor {
		return func(list []Tensor) []Tensor {
			for _, x := range list {
				if strings.HasSuffix(x.Name, "_proj.weight") {
					change(x.Name, func(t *Tensor) { t.DType = fp8.E4M3 })(list)
					if x.Name != q+".weight" {
						more = append(more, f32(scaleName(x.Name, weightScale), 1))
					}
				}
			}
			return append(list, more...)
		}
	}
	nan, inf := float32(math.NaN()), float32(math.Inf(1))
	for _, test := range []struct {
		edit func([]Tensor) []Tensor
		want string
	}{
		{inFP8(f32(q+".weight_scale", 2)), ""},
		{inFP8(f32(q+".weight_scale", 2), f32(q+".input_scale", 2)), ""},
		{inFP8(Tensor{q + ".weight_scale", fp8.BF16, []int{}, Bytes([]byte{0x80, 0x3f})}), ""},
		{inFP8(Tensor{q + ".weight_scale", fp8.F32, []int{1, 1}, Bytes(fp8.AppendFloats(nil, 1))}), ""},
		{inFP8(), `there is no tensor "model.layers.0.self_attn.q_proj.weight_scale"`},
		{inFP8(f32(q+".weight_scale", 1, 2)), "weight_scale\" holds 2 scales: octet reads FP8 weights with one scale per tensor"},
		{inFP8(f32(q + ".weight_scale")), "holds 0 scales"},
		{inFP8(f32(q+".weight_scale", 0)), "holds the scale 0: expected a positive finite number"},
		{inFP8(f32(q+".weight_scale", -1)), "holds the scale -1"},
		{inFP8(f32(q+".weight_scale", nan)), "holds the scale NaN"},
		{inFP8(f32(q+".weight_scale", inf)), "holds the scale +Inf"},
		{inFP8(Tensor{q + ".weight_scale", fp8.E8M0, []int{1}, Bytes([]byte{127})}), "weight_scale\" is stored as e8m0"},
		{inFP8(f32(q+".weight_scale", 2), f32(q+".input_scale", 0)), "input_scale\" holds the scale 0"},
		{inFP8(f32(q+".weight_scale", 2), f32(q+".weight_zero_point", 0)), `does not read tensor "model.layers.0.self_attn.q_proj.weight_zero_point"`},
		{inFP8(f32(q+".weight_scale", 2), f32("model.layers.0.self_attn.k_scale", 1)), `does not read tensor "model.layers.0.self_attn.k_scale"`},
		{add(), `tensor "model.layers.0.self_attn.q_proj.weight" is stored as fp32, but quantization_config in config.json says FP8`},
		{func(list []Tensor) []Tensor {
			return change(up, func(t *Tensor) { t.DType = fp8.BF16 })(inFP8(f32(q+".weight_scale", 2))(list))
		}, `up_proj.weight" is stored as bf16, but quantization_config in config.json says FP8`},
		{func(list []Tensor) []Tensor {
			return change(up, func(t *Tensor) { t.DType = fp8.INT8 })(inFP8(f32(q+".weight_scale", 2))(list))
		}, `up_proj.weight" is stored as int8: octet reads`},
		{func(list []Tensor) []Tensor {
			return change(headWeight, func(t *Tensor) { t.DType = fp8.E4M3 })(inFP8(f32(q+".weight_scale", 2))(list))
		}, `"lm_head.weight" is stored as e4m3: octet reads`},
	} {
		err := openModel(t, test.edit(modelOf(c))).Match(c)
		if test.want == "" {
			require.NoError(t, err)
			continue
		}
		require.ErrorContains(t, err, test.want)
	}
}

// TestWeight checks the values of each format, and that errors name the element that is
// not finite, wherever it is in the tensor.
func TestWeight(t *testing.T) {
	nan, inf := float32(math.NaN()), float32(math.Inf(-1))
	long := make([]float32, 2*weightPiece+3)
	for i := range long {
		long[i] = float32(i)
	}
	damaged := slices.Clone(long)
	damaged[weightPiece+5], damaged[2*weightPiece+2] = inf, nan
	codes := func(name string, dtype fp8.DType, code ...byte) Tensor {
		return Tensor{name, dtype, []int{len(code) / dtype.Size()}, Bytes(code)}
	}
	m := openModel(t, []Tensor{
		f32("long", long...), f32("damaged", damaged...), f32("first", nan, 1),
		codes("half", fp8.F16, 0, 0x3c, 0, 0x7c), codes("brain", fp8.BF16, 0x80, 0x3f),
		codes("a.weight", fp8.E4M3, 0x38, 0xc0), f32("a.weight_scale", 0.5),
		codes("b.weight", fp8.E4M3, 0x38, 0x7f), f32("b.weight_scale", 0.5),
		codes("c.weight", fp8.E5M2, 0x7b), f32("c.weight_scale", math.MaxFloat32),
		codes("d.weight", fp8.E4M3, 0x38), f32("e.weight_scale", -1), codes("e.weight", fp8.E4M3, 0x38),
		codes("power", fp8.E8M0, 127), codes("count", fp8.I32, 1, 0, 0, 0), f32("empty"),
	})
	for name, want := range map[string][]float32{"long": long, "brain": {1}, "a.weight": {0.5, -1}, "empty": {}} {
		got, err := m.Weight(name)
		require.NoError(t, err)
		require.Equal(t, want, got, name)
	}
	for name, want := range map[string]string{
		"damaged": "tensor \"damaged\" is damaged: element 16389 is -Inf", "first": "element 0 is NaN", "half": "element 1 is +Inf",
		"b.weight": "element 1 is NaN", "c.weight": "element 0 is +Inf", "d.weight": `there is no tensor "d.weight_scale"`,
		"e.weight": "holds the scale -1", "power": `tensor "power" is stored as e8m0`, "count": "is stored as i32", "none": `there is no tensor "none"`,
	} {
		_, err := m.Weight(name)
		require.ErrorContains(t, err, want, name)
		require.ErrorContains(t, err, ModelFile+": ")
	}
}
