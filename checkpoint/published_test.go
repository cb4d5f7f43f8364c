package checkpoint

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"
)

// The config.json of published models is read, and implies their numbers of parameters.
func TestPublishedConfigs(t *testing.T) {
	for _, c := range []struct {
		text       string
		want       Config
		parameters int
	}{
		{
			// Llama 3.2 1B
			`{"architectures":["LlamaForCausalLM"],"attention_bias":false,"attention_dropout":0.0,"bos_token_id":128000,
			"eos_token_id":128001,"head_dim":64,"hidden_act":"silu","hidden_size":2048,"initializer_range":0.02,
			"intermediate_size":8192,"max_position_embeddings":131072,"mlp_bias":false,"model_type":"llama",
			"num_attention_heads":32,"num_hidden_layers":16,"num_key_value_heads":8,"pretraining_tp":1,"rms_norm_eps":1e-05,
			"rope_scaling":{"factor":32.0,"high_freq_factor":4.0,"low_freq_factor":1.0,"original_max_position_embeddings":8192,
			"rope_type":"llama3"},"rope_theta":500000.0,"tie_word_embeddings":true,"torch_dtype":"bfloat16",
			"transformers_version":"4.45.0.dev0","use_cache":true,"vocab_size":128256}`,
			Config{
				HiddenSize: 2048, IntermediateSize: 8192, NumHiddenLayers: 16, NumAttentionHeads: 32, NumKeyValueHeads: 8, VocabSize: 128256,
				MaxPositionEmbeddings: 131072, RMSNormEps: 1e-5, RopeTheta: 5e5, RopeScaling: RopeScaling{32, 1, 4, 8192},
				TieWordEmbeddings: true, HiddenAct: "silu", Gated: true, TorchDType: "bfloat16",
			},
			1_235_814_400,
		},
		{
			// Qwen2.5 0.5B
			`{"architectures":["Qwen2ForCausalLM"],"attention_dropout":0.0,"bos_token_id":151643,"eos_token_id":151643,
			"hidden_act":"silu","hidden_size":896,"initializer_range":0.02,"intermediate_size":4864,
			"max_position_embeddings":32768,"max_window_layers":24,"model_type":"qwen2","num_attention_heads":14,
			"num_hidden_layers":24,"num_key_value_heads":2,"rms_norm_eps":1e-06,"rope_theta":1000000.0,"sliding_window":32768,
			"tie_word_embeddings":true,"torch_dtype":"bfloat16","transformers_version":"4.40.1","use_cache":true,
			"use_mrope":false,"use_sliding_window":false,"vocab_size":151936}`,
			Config{
				HiddenSize: 896, IntermediateSize: 4864, NumHiddenLayers: 24, NumAttentionHeads: 14, NumKeyValueHeads: 2, VocabSize: 151936,
				MaxPositionEmbeddings: 32768, RMSNormEps: 1e-6, RopeTheta: 1e6, QKVBias: true,
				TieWordEmbeddings: true, HiddenAct: "silu", Gated: true, TorchDType: "bfloat16",
			},
			494_032_768,
		},
		{
			// Qwen3 0.6B
			`{"architectures":["Qwen3ForCausalLM"],"attention_bias":false,"attention_dropout":0.0,"bos_token_id":151643,
			"eos_token_id":151645,"head_dim":128,"hidden_act":"silu","hidden_size":1024,"initializer_range":0.02,
			"intermediate_size":3072,"max_position_embeddings":40960,"max_window_layers":28,"model_type":"qwen3",
			"num_attention_heads":16,"num_hidden_layers":28,"num_key_value_heads":8,"rms_norm_eps":1e-06,"rope_scaling":null,
			"rope_theta":1000000,"sliding_window":null,"tie_word_embeddings":true,"torch_dtype":"bfloat16",
			"transformers_version":"4.51.0","use_cache":true,"use_sliding_window":false,"vocab_size":151936}`,
			Config{
				HiddenSize: 1024, IntermediateSize: 3072, NumHiddenLayers: 28, NumAttentionHeads: 16, NumKeyValueHeads: 8, HeadDim: 128, VocabSize: 151936,
				MaxPositionEmbeddings: 40960, RMSNormEps: 1e-6, RopeTheta: 1e6, Norms: qwen3Norms,
				TieWordEmbeddings: true, HiddenAct: "silu", Gated: true, TorchDType: "bfloat16",
			},
			596_049_920,
		},
	} {
		var got Config
		require.NoError(t, json.Unmarshal([]byte(c.text), &got))
		require.Equal(t, c.want, got)
		n := 0
		for _, shape := range got.Layout() {
			elems := 1
			for _, d := range shape {
				elems *= d
			}
			n += elems
		}
		require.Equal(t, c.parameters, n)
	}
}
