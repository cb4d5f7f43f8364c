package checkpoint

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestConfigRoundTrip(t *testing.T) {
	for _, edit := range []func(c *Config){
		func(c *Config) {},
		func(c *Config) { c.TieWordEmbeddings, c.RopeTheta, c.RMSNormEps = true, 500000.5, 1.0/3 },
		func(c *Config) { c.HiddenAct, c.Gated, c.TorchDType = "gelu", false, "" },
		func(c *Config) { c.HiddenAct, c.Gated, c.NumKeyValueHeads = "relu", false, 1 },
		func(c *Config) { c.HiddenAct = "geglu" },
		func(c *Config) { c.FP8 = true },
		func(c *Config) { c.RopeScaling = RopeScaling{32, 1, 4, 8192} },
		func(c *Config) { c.RopeScaling, c.HeadDim = RopeScaling{Factor: 2.5}, 12 },
		func(c *Config) { c.QKVBias, c.TieWordEmbeddings = true, true },
		func(c *Config) { c.QKVBias, c.Norms = true, Norms{QK: "learned"} },
		func(c *Config) { c.QKVBias, c.HiddenAct, c.Gated = true, "gelu", false },
		func(c *Config) { c.QKVBias, c.Experts = true, Experts{4, 2, 0.5} },
		func(c *Config) {
			c.Norms, c.HeadDim, c.RopeScaling = Norms{QK: "learned"}, 128, RopeScaling{4, 0.5, 2, 64}
		},
		func(c *Config) { c.Norms = Norms{QK: "learned"} },
		func(c *Config) { c.Norms = Norms{QK: "frozen", LayerScale: true} },
		func(c *Config) { c.Norms = Norms{Norm: "post", NoFinal: true, EmbedScale: 16.5} },
		func(c *Config) { c.Norms, c.HiddenAct, c.Gated = Norms{Norm: "both", QK: "learned"}, "gelu", false },
	} {
		want := tiny
		edit(&want)
		text, err := json.Marshal(want)
		require.NoError(t, err)
		var got Config
		require.NoError(t, json.Unmarshal(text, &got))
		require.Equal(t, want, got)
	}

	scaled := tiny
	scaled.RopeScaling = RopeScaling{8, 1, 4.5, 8192}
	text, err := json.Marshal(scaled)
	require.NoError(t, err)
	require.Contains(t, string(text), `"rope_scaling":{"rope_type":"llama3","factor":8.0,"low_freq_factor":1.0,"high_freq_factor":4.5,"original_max_position_embeddings":8192}`)
	biased := tiny
	biased.QKVBias = true
	text, err = json.Marshal(biased)
	require.NoError(t, err)
	require.Contains(t, string(text), `"architectures":["Qwen2ForCausalLM"],"model_type":"qwen2"`)
	require.NotContains(t, string(text), "bias", "Qwen2Config has no such key")
	text, err = json.Marshal(tiny)
	require.NoError(t, err)
	require.JSONEq(t, `{"architectures":["LlamaForCausalLM"],"model_type":"llama","vocab_size":256,"hidden_size":32,
		"intermediate_size":48,"num_hidden_layers":1,"num_attention_heads":4,"num_key_value_heads":2,"head_dim":8,
		"max_position_embeddings":64,"rms_norm_eps":1e-05,"rope_theta":10000,"hidden_act":"silu","attention_bias":false,
		"mlp_bias":false,"tie_word_embeddings":false,"bos_token_id":null,"eos_token_id":null,"torch_dtype":"float32"}`, string(text))
}

// Models without a gate are Arcee's, if transformers has their activation and norms. Files of
// earlier versions name them Octet's.
func TestConfigWithoutGate(t *testing.T) {
	for modelType, c := range map[string]Config{
		"arcee": {HiddenAct: "relu"}, "qwen2": {HiddenAct: "silu", Gated: true, QKVBias: true}, "octet": {HiddenAct: "mine"}, "octet-gated": {HiddenAct: "relu", Gated: true}, "qwen3": {HiddenAct: "silu", Gated: true, Norms: qwen3Norms},
	} {
		require.Equal(t, modelType, c.family().modelType)
	}
	require.Equal(t, "octet", Config{HiddenAct: "gelu", Norms: Norms{Norm: "post"}}.family().modelType)
	for _, modelType := range []string{"arcee", "octet"} {
		var c Config
		require.NoError(t, json.Unmarshal(minimal(`{"model_type":"`+modelType+`","hidden_act":"gelu"}`), &c))
		require.False(t, c.Gated)
	}
}

// minimal returns a config.json with the mandatory fields; fields in more replace
// or extend them.
func minimal(more string) []byte {
	fields := map[string]json.RawMessage{}
	for _, text := range []string{`{"model_type":"llama","hidden_size":64,"intermediate_size":128,"num_hidden_layers":2,"num_attention_heads":8,"vocab_size":100}`, more} {
		if err := json.Unmarshal([]byte(text), &fields); err != nil {
			panic(err)
		}
	}
	text, err := json.Marshal(fields)
	if err != nil {
		panic(err)
	}
	return text
}

// quantized returns a quantization_config with one config group. inGroup adds keys to
// the group, atTop to the object.
func quantized(inGroup, atTop string) string {
	return `{"quantization_config":{"quant_method":"compressed-tensors","format":"float-quantized","config_groups":{"g":{"targets":["Linear"],` + inGroup + `}},"ignore":["lm_head"],` + atTop + `}}`
}

const llama3 = `{"rope_type":"llama3","factor":8.0,"low_freq_factor":1.0,"high_freq_factor":4.0,"original_max_position_embeddings":8192}`

func tied(config string) string { return `{"tie_word_embeddings":true,` + config[1:] }

func weightsIn(more string) string {
	return `"weights":{"type":"float","strategy":"tensor",` + more + `}`
}

// TestConfigOfTransformers reads files that LlamaConfig of transformers wrote with
// every key and its default (to_json_string(use_diff=False)). Its other files have
// fewer keys.
func TestConfigOfTransformers(t *testing.T) {
	for _, version := range []string{"4.57.6", "5.23.0"} {
		text, err := os.ReadFile(filepath.Join("testdata", "transformers-"+version+".json"))
		require.NoError(t, err)
		require.Contains(t, string(text), `"transformers_version": "`+version+`"`)
		var got Config
		require.NoError(t, json.Unmarshal(text, &got), version)
		require.Equal(t, Config{
			HiddenSize: 64, IntermediateSize: 128, NumHiddenLayers: 2, NumAttentionHeads: 4, NumKeyValueHeads: 4, VocabSize: 256,
			MaxPositionEmbeddings: 2048, RMSNormEps: 1e-6, RopeTheta: 10000, HiddenAct: "silu", Gated: true,
		}, got, version)
	}
}

func TestConfigDefaults(t *testing.T) {
	defaults := Config{
		HiddenSize: 64, IntermediateSize: 128, NumHiddenLayers: 2, NumAttentionHeads: 8, NumKeyValueHeads: 8, VocabSize: 100,
		MaxPositionEmbeddings: 2048, RMSNormEps: 1e-6, RopeTheta: 10000, HiddenAct: "silu", Gated: true,
	}
	for _, c := range []struct {
		more string
		edit func(c *Config)
	}{
		{`{}`, func(c *Config) {}},
		{`{"num_key_value_heads":null,"head_dim":null,"rope_scaling":null,"rope_parameters":null,"architectures":null,"quantization_config":null}`, func(c *Config) {}},
		{`{"num_key_value_heads":2,"head_dim":8,"attention_bias":false,"mlp_bias":false}`, func(c *Config) { c.NumKeyValueHeads = 2 }},
		{`{"architectures":["LlamaForCausalLM"],"transformers_version":"4.44.2","use_cache":true,"eos_token_id":[1,2]}`, func(c *Config) {}},
		{`{"rope_theta":500000.0,"torch_dtype":"bfloat16"}`, func(c *Config) { c.RopeTheta, c.TorchDType = 500000, "bfloat16" }},
		{`{"rope_parameters":{"rope_theta":2e4,"rope_type":"default"},"dtype":"float16"}`, func(c *Config) { c.RopeTheta, c.TorchDType = 20000, "float16" }},
		{`{"rope_theta":1e6,"rope_parameters":{"rope_type":"default"}}`, func(c *Config) { c.RopeTheta = 1e6 }},
		{`{"rope_theta":1e5,"rope_parameters":{"rope_theta":1e5}}`, func(c *Config) { c.RopeTheta = 1e5 }},
		{`{"rope_scaling":{"type":"default","factor":1},"partial_rotary_factor":1.0}`, func(c *Config) {}},
		{`{"sliding_window":null,"layer_types":["full_attention","full_attention"],"pretraining_tp":1,"num_experts":null}`, func(c *Config) {}},
		{`{"add_cross_attention":false,"is_encoder_decoder":false,"tie_encoder_decoder":false,"pruned_heads":{},"rope_interleaved":false}`, func(c *Config) {}},
		{`{"sliding_window":4096,"use_sliding_window":false,"max_window_layers":28,"_name_or_path":"x","temperature":0.7,"attn_implementation":"sdpa"}`, func(c *Config) {}},
		{`{"head_dim":16}`, func(c *Config) { c.HeadDim = 16 }},
		{`{"head_dim":32,"num_attention_heads":3}`, func(c *Config) { c.HeadDim, c.NumAttentionHeads, c.NumKeyValueHeads = 32, 3, 3 }},
		{`{"rope_theta":5e5,"rope_scaling":` + llama3 + `}`, func(c *Config) { c.RopeTheta, c.RopeScaling = 5e5, RopeScaling{8, 1, 4, 8192} }},
		{`{"rope_scaling":` + llama3 + `,"rope_parameters":` + llama3 + `}`, func(c *Config) { c.RopeScaling = RopeScaling{8, 1, 4, 8192} }},
		{`{"rope_parameters":{"rope_theta":5e5,` + llama3[1:] + `}`, func(c *Config) { c.RopeTheta, c.RopeScaling = 5e5, RopeScaling{8, 1, 4, 8192} }},
		{`{"rope_scaling":{"type":"linear","factor":2}}`, func(c *Config) { c.RopeScaling = RopeScaling{Factor: 2} }},
		{`{"rope_scaling":{"rope_type":"linear","type":"linear","factor":1}}`, func(c *Config) {}},
		{`{"model_type":"qwen2","num_attention_heads":32,"use_sliding_window":false,"sliding_window":32768,"max_window_layers":21}`, func(c *Config) { c.QKVBias, c.NumAttentionHeads, c.NumKeyValueHeads = true, 32, 32 }},
		{`{"model_type":"qwen2","num_key_value_heads":2,"attention_dropout":0.0}`, func(c *Config) { c.QKVBias, c.NumKeyValueHeads = true, 2 }},
		{`{"model_type":"qwen3","num_key_value_heads":2}`, func(c *Config) { c.Norms, c.HeadDim, c.NumKeyValueHeads = qwen3Norms, 128, 2 }},
		{`{"model_type":"qwen3","num_key_value_heads":2,"head_dim":8}`, func(c *Config) { c.Norms, c.NumKeyValueHeads = qwen3Norms, 2 }},
		{`{"quantization_config":` + quantizationConfig + `}`, func(c *Config) { c.FP8 = true }},
		{quantized(`"weights":{"num_bits":8,"type":"float","strategy":"tensor","observer":"minmax","group_size":null}`,
			`"sparsity_config":{},"transform_config":{},"kv_cache_scheme":null,"version":"0.11"`), func(c *Config) { c.FP8 = true }},
		{quantized(`"weights":{"type":"float","strategy":"tensor"},"input_activations":null`, `"sparsity_config":{"format":"dense"}`), func(c *Config) { c.FP8 = true }},
		{tied(quantized(weightsIn(`"num_bits":8`), `"ignore":[]`)), func(c *Config) { c.FP8, c.TieWordEmbeddings = true, true }},
		{tied(quantized(weightsIn(`"num_bits":8`), `"ignore":null`)), func(c *Config) { c.FP8, c.TieWordEmbeddings = true, true }},
		{tied(quantized(weightsIn(`"num_bits":8`), `"version":"1"`)), func(c *Config) { c.FP8, c.TieWordEmbeddings = true, true }},
	} {
		want := defaults
		c.edit(&want)
		var got Config
		require.NoError(t, json.Unmarshal(minimal(c.more), &got), c.more)
		require.Equal(t, want, got, c.more)
	}
}

func TestConfigRefuses(t *testing.T) {
	for _, c := range []struct{ more, want string }{
		{`{"hidden_size":null}`, "hidden_size is missing"},
		{`{"hidden_size":0}`, "hidden_size = 0: expected a whole number from 1 to 16777216"},
		{`{"hidden_size":-64}`, "hidden_size = -64: expected"},
		{`{"hidden_size":64.0}`, "hidden_size = 64.0: expected a whole number"},
		{`{"hidden_size":"64"}`, `hidden_size = "64": expected a whole number`},
		{`{"hidden_size":[` + strings.Repeat("1,\n", 1000) + `1]}`, "hidden_size = [1,1,1"},
		{`{"vocab_size":99999999999999999999}`, "vocab_size = 99999999999999999999: expected"},
		{`{"vocab_size":16777217}`, "vocab_size = 16777217: expected"},
		{`{"num_attention_heads":7}`, "hidden_size = 64 is not a multiple of num_attention_heads = 7"},
		{`{"num_key_value_heads":3}`, "num_attention_heads = 8 is not a multiple of num_key_value_heads = 3"},
		{`{"head_dim":0}`, "head_dim = 0: expected a whole number from 1"},
		{`{"head_dim":16777216}`, "num_attention_heads · head_dim is too large"},
		{`{"rms_norm_eps":0}`, "rms_norm_eps = 0: expected a positive number"},
		{`{"rms_norm_eps":1e999}`, "rms_norm_eps = 1e999: expected a number"},
		{`{"rope_theta":-1}`, "rope_theta = -1: expected a positive number"},
		{`{"rope_theta":"10000"}`, `rope_theta = "10000": expected a number`},
		{`{"attention_bias":true}`, "attention_bias = true: octet supports biases of q_proj, k_proj and v_proj only, as in Qwen2"},
		{`{"mlp_bias":true}`, "mlp_bias = true: octet supports biases of"},
		{`{"mlp_bias":1}`, "mlp_bias = 1: expected true or false"},
		{`{"rope_scaling":{"rope_type":"llama3","factor":8.0}}`, `rope_scaling: low_freq_factor is missing`},
		{`{"rope_scaling":{"rope_type":"llama3","factor":8,"low_freq_factor":1,"high_freq_factor":4}}`, `rope_scaling: original_max_position_embeddings is missing`},
		{`{"rope_scaling":{"rope_type":"llama3","factor":0.5,"low_freq_factor":1,"high_freq_factor":4,"original_max_position_embeddings":64}}`, "rope_scaling: factor = 0.5: expected a number of at least 1"},
		{`{"rope_scaling":{"rope_type":"llama3","factor":8,"low_freq_factor":0,"high_freq_factor":4,"original_max_position_embeddings":64}}`, "rope_scaling: low_freq_factor = 0: expected a positive number"},
		{`{"rope_scaling":{"rope_type":"llama3","factor":8,"low_freq_factor":4,"high_freq_factor":4,"original_max_position_embeddings":64}}`, "rope_scaling: high_freq_factor = 4: expected more than low_freq_factor = 4"},
		{`{"rope_scaling":{"rope_type":"llama3","factor":8,"low_freq_factor":1,"high_freq_factor":4,"original_max_position_embeddings":64.5}}`, "rope_scaling: original_max_position_embeddings = 64.5: expected a whole number"},
		{`{"rope_scaling":{"rope_type":"llama3","factor":"8","low_freq_factor":1,"high_freq_factor":4,"original_max_position_embeddings":64}}`, `rope_scaling: factor = "8": expected a number`},
		{`{"rope_scaling":{"rope_type":"llama3","attention_factor":2,` + llama3[1:] + `}`, `unknown key "attention_factor"`},
		{`{"rope_scaling":{"type":"linear"}}`, "rope_scaling: factor is missing"},
		{`{"rope_scaling":{"type":"linear","factor":-2}}`, "rope_scaling: factor = -2: expected a number of at least 1"},
		{`{"rope_scaling":{"type":"linear","factor":0}}`, "rope_scaling: factor = 0: expected a number of at least 1"},
		{`{"rope_scaling":{"type":"linear","rope_type":"llama3","factor":2}}`, `rope_scaling: type = "linear", but rope_type = "llama3"`},
		{`{"rope_scaling":{"type":"default","factor":2}}`, "rope_scaling: factor = 2: octet needs 1"},
		{`{"rope_scaling":{"type":"linear","factor":2},"rope_parameters":` + llama3 + `}`, "rope_parameters: it scales by [8, 1, 4, 8192], but another key says [2]"},
		{`{"rope_parameters":{"rope_type":"yarn","rope_theta":1e4}}`, `rope_parameters: rope_type = "yarn": octet supports default, linear and llama3 only`},
		{`{"rope_scaling":{"type":"dynamic","factor":2}}`, `rope_scaling: type = "dynamic": octet supports default, linear and llama3 only`},
		{`{"model_type":"qwen2","use_sliding_window":true}`, "use_sliding_window = true: octet supports full attention only"},
		{`{"model_type":"qwen2","hidden_act":"gelu"}`, `hidden_act = "gelu": model_type "qwen2" needs "silu"`},
		{`{"model_type":"qwen2"}`, "num_attention_heads = 8 is not a multiple of num_key_value_heads = 32"},
		{`{"model_type":"octet-gated","qkv_bias":true}`, `hidden_act = "silu": only model_type "qwen2" has it with these biases`},
		{`{"qkv_bias":true}`, `unknown key "qkv_bias"`},
		{`{"rope_parameters":{"rope_theta":"x"}}`, `rope_parameters: rope_theta = "x": expected a number`},
		{`{"rope_theta":1e6,"rope_parameters":{"rope_theta":1e5}}`, "rope_parameters: rope_theta = 100000, but another key says 1e+06"},
		{`{"rope_scaling":{"rope_theta":1e6},"rope_parameters":{"rope_theta":1e5}}`, "rope_parameters: rope_theta = 100000, but another key says 1e+06"},
		{`{"rope_parameters":3}`, "rope_parameters: expected a JSON object"},
		{`{"partial_rotary_factor":0.5}`, "partial_rotary_factor = 0.5"},
		{`{"rope_parameters":{"partial_rotary_factor":0.5}}`, "rope_parameters: partial_rotary_factor = 0.5"},
		{`{"hidden_act":"gelu"}`, `hidden_act = "gelu": model_type "llama" needs "silu"`},
		{`{"model_type":"octet"}`, `hidden_act = "silu": only model_type "llama" and, with norms of queries and keys, "qwen3" have it`},
		{`{"norm":"post"}`, `unknown key "norm"`},
		{`{"model_type":"octet-gated","norm":"none"}`, `norm = "none": expected pre, post or both`},
		{`{"model_type":"octet-gated","qk_norm":"on"}`, `qk_norm = "on": expected none, learned or frozen`},
		{`{"model_type":"octet-gated","qk_norm":"learned"}`, `hidden_act = "silu": only model_type "llama" and`},
		{`{"model_type":"octet-gated","layer_scale":true,"norm":"both"}`, `layer_scale = true with norm = "both"`},
		{`{"model_type":"octet-gated","embed_scale":-1}`, `embed_scale = -1: expected a positive number`},
		{`{"model_type":"qwen3","hidden_act":"gelu"}`, `hidden_act = "gelu": model_type "qwen3" needs "silu"`},
		{`{"model_type":"arcee","hidden_act":"relu2"}`, `hidden_act = "relu2": octet supports "arcee" with one of ["gelu" "relu"] only`},
		{`{"model_type":"arcee"}`, `hidden_act = "silu": octet supports "arcee" with one of`},
		{`{"model_type":"octet-gated"}`, `hidden_act = "silu": only model_type "llama" and, with norms of queries and keys, "qwen3" have it`},
		{`{"model_type":"octet","hidden_act":"ge\nlu"}`, `hidden_act = "ge\nlu": expected at most 40 lower-case letters`},
		{`{"model_type":"octet","hidden_act":""}`, `hidden_act = "": expected at most 40 lower-case letters`},
		{`{"model_type":"octet","hidden_act":"relu","architectures":["OctetGatedForCausalLM"]}`, `octet supports OctetForCausalLM only`},
		{`{"add_cross_attention":true}`, "add_cross_attention = true: octet needs false"},
		{`{"is_encoder_decoder":true}`, "is_encoder_decoder = true: octet needs false"},
		{`{"tie_encoder_decoder":true}`, "tie_encoder_decoder = true: octet needs false"},
		{`{"pretraining_tp":2}`, "pretraining_tp = 2: octet needs 1"},
		{`{"pruned_heads":{"0":[1]}}`, `pruned_heads = {"0":[1]}: octet needs {}`},
		{`{"rope_interleaved":true}`, "rope_interleaved = true: octet needs false"},
		{`{"model_type":"mistral"}`, `model_type = "mistral"`},
		{`{"model_type":null}`, `model_type = ""`},
		{`{"architectures":["LlamaForSequenceClassification"]}`, `architectures = ["LlamaForSequenceClassification"]`},
		{`{"architectures":"LlamaForCausalLM"}`, "expected a list of strings"},
		{`{"quantization_config":{"bits":4}}`, `quantization_config: quant_method = "", format = ""`},
		{`{"quantization_config":{"quant_method":"gptq","format":"float-quantized"}}`, `quant_method = "gptq"`},
		{`{"quantization_config":{"quant_method":"compressed-tensors","format":"pack-quantized"}}`, `format = "pack-quantized": octet reads`},
		{`{"quantization_config":{"quant_method":"compressed-tensors","format":3}}`, "quantization_config: format = 3: expected a string"},
		{`{"quantization_config":true}`, "quantization_config: expected a JSON object"},
		{`{"quantization_config":{"quant_method":"compressed-tensors","format":"float-quantized"}}`, "quantization_config: config_groups is missing"},
		{quantized(`"format":"float-quantized"`, `"version":"1"`), "quantization_config: config_groups: g: weights is missing"},
		{quantized(weightsIn(`"num_bits":4`), `"version":"1"`), "weights: num_bits = 4: octet needs 8"},
		{quantized(`"weights":{"strategy":"tensor"}`, `"version":"1"`), "weights: type is missing"},
		{quantized(`"weights":{"type":"int","strategy":"tensor"}`, `"version":"1"`), `weights: type = "int": octet needs "float"`},
		{quantized(`"weights":{"type":"float"}`, `"version":"1"`), "weights: strategy is missing"},
		{quantized(`"weights":{"type":"float","strategy":"channel"}`, `"version":"1"`), `weights: strategy = "channel": octet needs "tensor"`},
		{quantized(weightsIn(`"symmetric":false`), `"version":"1"`), "weights: symmetric = false: octet needs true"},
		{quantized(weightsIn(`"dynamic":true`), `"version":"1"`), "weights: dynamic = true: octet needs false"},
		{quantized(weightsIn(`"group_size":128`), `"version":"1"`), `weights: unknown key "group_size"`},
		{quantized(weightsIn(`"num_bits":8`)+`,"input_activations":{"type":"float","strategy":"token","dynamic":true}`, `"version":"1"`), "input_activations: dynamic = true"},
		{quantized(weightsIn(`"num_bits":8`)+`,"output_activations":{"num_bits":8}`, `"version":"1"`), `g: unknown key "output_activations"`},
		{quantized(weightsIn(`"num_bits":8`), `"transform_config":{"config_groups":{}}`), `transform_config = {"config_groups":{}}: octet needs {}`},
		{quantized(weightsIn(`"num_bits":8`), `"sparsity_config":{"format":"sparse-24-bitmask"}`), `sparsity_config: format = "sparse-24-bitmask": octet needs "dense"`},
		{quantized(weightsIn(`"num_bits":8`), `"kv_cache_scheme":{"num_bits":8}`), `unknown key "kv_cache_scheme"`},
		{quantized(weightsIn(`"num_bits":8`), `"quantization_status":"frozen"`), `quantization_status = "frozen": octet needs "compressed"`},
		{quantized(weightsIn(`"num_bits":8`)+`,"targets":["re:.*q_proj"]`, `"version":"1"`), `g: targets = ["re:.*q_proj"]: octet needs ["Linear"]`},
		{quantized(weightsIn(`"num_bits":8`)+`,"targets":null`, `"version":"1"`), "g: targets is missing"},
		{quantized(weightsIn(`"num_bits":8`), `"ignore":[]`), `quantization_config: ignore = []: octet needs ["lm_head"]`},
		{quantized(weightsIn(`"num_bits":8`), `"ignore":null`), `quantization_config: ignore is missing: octet needs ["lm_head"]`},
		{quantized(weightsIn(`"num_bits":8`), `"ignore":["lm_head","model.layers.0.self_attn.q_proj"]`), `"model.layers.0.self_attn.q_proj"]: octet needs ["lm_head"]`},

		{`{"rope_scaling":{"rope_type":"default","type":"linear"}}`, `rope_scaling: type = "linear"`},
		{`{"rope_scaling":{"type":"default","factor":2}}`, "rope_scaling: factor = 2: octet needs 1"},
		{`{"rope_scaling":{"type":"default","mrope_section":[1,2,1]}}`, `rope_scaling: unknown key "mrope_section"`},
		{`{"rope_parameters":{"full_attention":{"rope_theta":1e4}}}`, `rope_parameters: unknown key "full_attention"`},
		{`{"sliding_window":4096}`, "sliding_window = 4096: octet supports full attention only"},
		{`{"sliding_window":4096,"use_sliding_window":true}`, "sliding_window = 4096"},
		{`{"use_sliding_window":1}`, "use_sliding_window = 1: expected true or false"},
		{`{"layer_types":["full_attention","sliding_attention"]}`, `layer_types contains "sliding_attention"`},
		{`{"layer_types":"full_attention"}`, "layer_types = \"full_attention\": expected a list of strings"},
		{`{"final_logit_softcapping":30.0}`, `unknown key "final_logit_softcapping": octet supports plain Llama models; remove the key if it does not change what the model computes`},
		{`{"attn_logit_softcapping":50.0}`, `unknown key "attn_logit_softcapping"`},
		{`{"logits_scaling":8}`, `unknown key "logits_scaling"`},
		{`{"logit_scale":0.0625}`, `unknown key "logit_scale"`},
		{`{"embedding_multiplier":12}`, `unknown key "embedding_multiplier"`},
		{`{"residual_multiplier":0.22}`, `unknown key "residual_multiplier"`},
		{`{"num_local_experts":8}`, `unknown key "num_local_experts"`},
		{`{"auto_map":{"AutoModelForCausalLM":"modeling.Model"}}`, `unknown key "auto_map"`},
		{`{"_experts_implementation":"x"}`, `unknown key "_experts_implementation"`},
		{`{"pretraining_tp":2}`, "pretraining_tp = 2: octet needs 1"},
		{`{"is_encoder_decoder":true}`, "is_encoder_decoder = true: octet needs false"},
		{`{"pruned_heads":{"0":[1]}}`, `pruned_heads = {"0":[1]}: octet needs {}`},
		{`{"` + strings.Repeat("x", 1000) + `":1}`, `unknown key "xxx`},
	} {
		var got Config
		err := json.Unmarshal(minimal(c.more), &got)
		require.ErrorContains(t, err, c.want, "%.100s", c.more)
		require.NotContains(t, err.Error(), "\n")
		require.Less(t, len(err.Error()), 300)
		require.Zero(t, got, "a failed json.Unmarshal must not change the config")
	}
	var c Config
	require.ErrorContains(t, json.Unmarshal([]byte(`[]`), &c), "expected a JSON object")
	require.ErrorContains(t, json.Unmarshal([]byte(`{"Hidden_Size":64,"model_type":"llama"}`), &c), "hidden_size is missing", "keys are case sensitive")

	bad := tiny
	bad.HiddenAct = "Tanh"
	_, err := json.Marshal(bad)
	require.ErrorContains(t, err, `hidden_act = "Tanh": expected at most 40 lower-case letters`)
	bad = tiny
	bad.Gated = false
	_, err = json.Marshal(bad)
	require.ErrorContains(t, err, `hidden_act = "silu" needs gate_proj`)
}
