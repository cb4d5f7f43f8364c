package checkpoint

import (
	"maps"
	"slices"
)

// quantizationConfig describes FP8 weights in the terms of compressed-tensors: linear
// layers are E4M3 codes, each with one scale for its weight and one for its input.
const quantizationConfig = `{
  "quant_method": "compressed-tensors",
  "format": "float-quantized",
  "quantization_status": "compressed",
  "ignore": ["lm_head"],
  "config_groups": {
    "group_0": {
      "targets": ["Linear"],
      "weights": {"num_bits": 8, "type": "float", "strategy": "tensor", "symmetric": true, "dynamic": false},
      "input_activations": {"num_bits": 8, "type": "float", "strategy": "tensor", "symmetric": true, "dynamic": false}
    }
  }
}`

// quantization reports whether weights are stored in FP8 and fails on any quantization
// other than that of quantizationConfig. Input scales are for other programs: Octet's
// recipes determine how the input of a GEMM is quantized.
//
// Readers derive the FP8 layers from targets and ignore. Octet accepts one meaning only:
// all linear layers except lm_head are FP8. A tied model has no separate lm_head to
// ignore. [Tensors.Match] checks the tensors against that.
func (f *fields) quantization(tied bool) (fp8 bool) {
	return f.object("quantization_config", func(in *fields) {
		method, format := in.text("quant_method", ""), in.text("format", "")
		if method != "compressed-tensors" || format != "float-quantized" {
			in.fail("quant_method = %.80q, format = %.80q: octet reads unquantized weights, or \"float-quantized\" by \"compressed-tensors\"", method, format)
		}
		groups := in.object("config_groups", func(list *fields) {
			for _, name := range slices.Sorted(maps.Keys(list.values)) {
				list.object(name, (*fields).quantizationGroup)
			}
		})
		if !groups {
			in.fail("config_groups is missing")
		}
		in.object("sparsity_config", func(s *fields) { s.rejectUnread(map[string]any{"format": "dense"}) })
		harmless := map[string]any{
			"global_compression_ratio": anyValue{}, "version": anyValue{}, "ignore": []any{"lm_head"},
			"quantization_status": "compressed", "transform_config": map[string]any{},
		}
		switch ignore := in.values["ignore"]; {
		case tied && string(ignore) == "[]":
			harmless["ignore"] = []any{}
		case !tied && (ignore == nil || string(ignore) == "null"):
			in.fail(`ignore is missing: octet needs ["lm_head"], the only linear layer that is not quantized`)
		}
		in.rejectUnread(harmless)
	})
}

// quantizationGroup checks one entry of config_groups.
func (f *fields) quantizationGroup() {
	if !f.object("weights", (*fields).perTensorFP8) {
		f.fail("weights is missing")
	}
	f.object("input_activations", (*fields).perTensorFP8)
	if f.raw("targets") == nil {
		f.fail("targets is missing")
	}
	delete(f.read, "targets") // rejectUnread compares the value
	f.rejectUnread(map[string]any{"targets": []any{"Linear"}, "format": "float-quantized"})
}

// perTensorFP8 fails unless the fields describe FP8 with one static scale per tensor.
func (f *fields) perTensorFP8() {
	for _, name := range []string{"type", "strategy"} {
		if f.raw(name) == nil {
			f.fail("%s is missing", name)
		}
		delete(f.read, name) // rejectUnread compares the value
	}
	f.rejectUnread(map[string]any{
		"num_bits": 8.0, "type": "float", "strategy": "tensor", "symmetric": true, "dynamic": false,
		"observer": anyValue{}, "observer_kwargs": anyValue{}, "scale_dtype": anyValue{}, "zp_dtype": anyValue{},
	})
}
