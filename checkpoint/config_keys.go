package checkpoint

import (
	"encoding/json"
	"maps"
	"reflect"
	"slices"
)

// anyValue in a list of harmless keys allows every value.
type anyValue struct{}

// harmlessKeys lists the keys of config.json that do not change the logits of a
// Llama model, each with the one value for which that is true, or anyValue. It has
// the keys that Octet does not read but that LlamaConfig of transformers 4.57 and
// 5.23, older releases and conversion tools write. A key that is neither read nor
// listed may enable a feature that Octet lacks, so reading it is an error.
var harmlessKeys = map[string]any{
	// Bookkeeping. Keys that begin with "_" are private to transformers. Those not
	// listed here are errors, like any unknown key.
	"_attn_implementation": anyValue{}, "_attn_implementation_autoset": anyValue{}, "_commit_hash": anyValue{},
	"_flash_attn_2_enabled": anyValue{}, "_name_or_path": anyValue{}, "attn_implementation": anyValue{},
	"finetuning_task": anyValue{}, "is_llama_config": anyValue{}, "max_sequence_length": anyValue{},
	"prefix": anyValue{}, "problem_type": anyValue{}, "task_specific_params": anyValue{}, "tokenizer_class": anyValue{},
	"transformers.js_config": anyValue{}, "transformers_version": anyValue{},
	"unsloth_fixed": anyValue{}, "unsloth_version": anyValue{},

	// Initialization and regularization in training, which Octet configures elsewhere.
	"attention_dropout": anyValue{}, "initializer_range": anyValue{}, "output_router_logits": anyValue{},

	// How transformers runs the model and what it returns.
	"chunk_size_feed_forward": anyValue{}, "gradient_checkpointing": anyValue{}, "is_decoder": anyValue{},
	"output_attentions": anyValue{}, "output_hidden_states": anyValue{}, "output_scores": anyValue{},
	"return_dict": anyValue{}, "return_dict_in_generate": anyValue{}, "tf_legacy_loss": anyValue{},
	"torchscript": anyValue{}, "use_bfloat16": anyValue{}, "use_cache": anyValue{}, "use_return_dict": anyValue{},

	// Labels of classifiers.
	"id2label": anyValue{}, "label2id": anyValue{}, "num_labels": anyValue{},

	// Special tokens and sampling.
	"bad_words_ids": anyValue{}, "begin_suppress_tokens": anyValue{}, "bos_token_id": anyValue{},
	"decoder_start_token_id": anyValue{}, "diversity_penalty": anyValue{}, "do_sample": anyValue{},
	"early_stopping": anyValue{}, "encoder_no_repeat_ngram_size": anyValue{}, "eos_token_id": anyValue{},
	"exponential_decay_length_penalty": anyValue{}, "forced_bos_token_id": anyValue{}, "forced_eos_token_id": anyValue{},
	"length_penalty": anyValue{}, "max_length": anyValue{}, "min_length": anyValue{}, "no_repeat_ngram_size": anyValue{},
	"num_beam_groups": anyValue{}, "num_beams": anyValue{}, "num_return_sequences": anyValue{}, "pad_token_id": anyValue{},
	"remove_invalid_values": anyValue{}, "repetition_penalty": anyValue{}, "sep_token_id": anyValue{},
	"suppress_tokens": anyValue{}, "temperature": anyValue{}, "top_k": anyValue{}, "top_p": anyValue{}, "typical_p": anyValue{},

	// Disabled features.
	"add_cross_attention": false, "is_encoder_decoder": false, "tie_encoder_decoder": false,
	"max_window_layers": anyValue{}, // unused without a window, see rejectSlidingWindow
	"pretraining_tp":    1.0,        // larger values split GEMMs, which changes their rounding
	"pruned_heads":      map[string]any{},
	"rope_interleaved":  false,
	"use_mrope":         false, // of Qwen2.5: rotary positions of images
}

// rejectUnread fails on the first key, in the order of names, that is neither read nor
// harmless. A key with the value null is absent.
func (f *fields) rejectUnread(harmless map[string]any) {
	for _, name := range slices.Sorted(maps.Keys(f.values)) {
		if f.read[name] {
			continue
		}
		value := f.raw(name)
		allowed, known := harmless[name]
		if value == nil || known && allowed == any(anyValue{}) {
			continue
		}
		if !known {
			f.fail("unknown key %.80q: octet supports plain Llama models; remove the key if it does not change what the model computes", name)
			continue
		}
		var have any
		if err := json.Unmarshal(value, &have); err != nil || !reflect.DeepEqual(have, allowed) {
			want, _ := json.Marshal(allowed)
			f.fail("%s = %s: octet needs %s", name, excerpt(value), want)
		}
	}
}
