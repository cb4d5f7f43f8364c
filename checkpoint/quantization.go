package checkpoint

import (
	"maps"
	"slices"
)

// quantizationConfig says, in the terms of compressed-tensors, what weights in FP8
// are: E4M3 codes of linear layers with one scale each, and one scale for what each
// layer reads.
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

// quantization reports whether weights are stored in FP8, and refuses every other
// form than that of quantizationConfig. The scales of inputs are for other
// programs: Octet's recipes decide how a product's input is rounded.
//
// Every reader takes the layers in FP8 from targets and ignore. Octet therefore
// accepts one meaning only: all linear layers except lm_head are in FP8. A tied model
// has no lm_head of its own to ignore. [Tensors.Match] compares the tensors with that.
func (f *fields) quantization(tied bool) (fp8 bool) {
	return f.object("quantization_config", func(in *fields) {
		method, format := in.text("quant_method", ""), in.text("format", "")
		if method != "compressed-tensors" || format != "float-quantized" {
			in.fail("quant_method = %.80q, format = %.80q: octet reads weights that are not quantized, or \"float-quantized\" by \"compressed-tensors\"", method, format)
		}
		groups := in.object("config_groups", func(list *fields) {
			for _, name := range slices.Sorted(maps.Keys(list.values)) {
				list.object(name, (*fields).quantizationGroup)
			}
		})
		if !groups {
			in.fail("config_groups is missing")
		}
		in.object("sparsity_config", func(s *fields) { s.refuseUnread(map[string]any{"format": "dense"}) })
		harmless := map[string]any{
			"global_compression_ratio": anyValue{}, "version": anyValue{}, "ignore": []any{"lm_head"},
			"quantization_status": "compressed", "transform_config": map[string]any{},
		}
		switch ignore := in.values["ignore"]; {
		case tied && string(ignore) == "[]":
			harmless["ignore"] = []any{}
		case !tied && (ignore == nil || string(ignore) == "null"):
			in.fail(`ignore is missing: octet needs ["lm_head"], the one linear layer that it reads unquantized`)
		}
		in.refuseUnread(harmless)
	})
}

// quantizationGroup checks the formats of one group of layers.
func (f *fields) quantizationGroup() {
	if !f.object("weights", (*fields).perTensorFP8) {
		f.fail("weights is missing")
	}
	f.object("input_activations", (*fields).perTensorFP8)
	if f.raw("targets") == nil {
		f.fail("targets is missing")
	}
	delete(f.read, "targets") // refuseUnread compares the value
	f.refuseUnread(map[string]any{"targets": []any{"Linear"}, "format": "float-quantized"})
}

// perTensorFP8 wants an operand in FP8 with one static scale.
func (f *fields) perTensorFP8() {
	for _, name := range []string{"type", "strategy"} {
		if f.raw(name) == nil {
			f.fail("%s is missing", name)
		}
		delete(f.read, name) // refuseUnread compares the value
	}
	f.refuseUnread(map[string]any{
		"num_bits": 8.0, "type": "float", "strategy": "tensor", "symmetric": true, "dynamic": false,
		"observer": anyValue{}, "observer_kwargs": anyValue{}, "scale_dtype": anyValue{}, "zp_dtype": anyValue{},
	})
}
