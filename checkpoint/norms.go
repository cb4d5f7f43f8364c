package checkpoint

import (
	"cmp"
	"fmt"
	"math"
)

// Norms says where a decoder normalizes and what else joins its layers, in the words of the
// configuration. The zero value is Llama's.
type Norms struct {
	Norm       string  // "post" or "both"; empty: pre
	NoFinal    bool    // no norm before the head
	QK         string  // "learned" or "frozen": norms of queries and keys; empty: none
	LayerScale bool    // vectors multiply the results of attention and MLP
	EmbedScale float64 // multiplies the rows of the embedding; 0: 1
}

// qwen3Norms are those of Qwen3, which is Llama with learned norms of queries and keys.
var qwen3Norms = Norms{QK: "learned"}

// Canonical returns n with the words for Llama's choices replaced by zero values.
func (n Norms) Canonical() Norms {
	if n.Norm == "pre" {
		n.Norm = ""
	}
	if n.QK == "none" {
		n.QK = ""
	}
	if n.EmbedScale == 1 {
		n.EmbedScale = 0
	}
	return n
}

// String returns the keys of the configuration that differ from Llama's: "post qk_norm=frozen".
func (n Norms) String() string {
	s := cmp.Or(n.Norm, "pre")
	if n.NoFinal {
		s += " final_norm=false"
	}
	if n.QK != "" {
		s += " qk_norm=" + n.QK
	}
	if n.LayerScale {
		s += " with layer_scale"
	}
	if n.EmbedScale != 0 {
		s += fmt.Sprintf(" embed_scale=%v", n.EmbedScale)
	}
	return s
}

// Foreign reports whether transformers has an architecture with these norms.
func (n Norms) Foreign() bool { return n == Norms{} || n == qwen3Norms }

func (n Norms) validate() error {
	switch {
	case n.Norm != "" && n.Norm != "post" && n.Norm != "both":
		return fmt.Errorf("norm = %.80q: expected pre, post or both", n.Norm)
	case n.QK != "" && n.QK != "learned" && n.QK != "frozen":
		return fmt.Errorf("qk_norm = %.80q: expected none, learned or frozen", n.QK)
	case n.LayerScale && n.Norm != "":
		return fmt.Errorf("layer_scale = true with norm = %q: expected norm = \"pre\"", n.Norm)
	case !(n.EmbedScale >= 0) || math.IsInf(n.EmbedScale, 1):
		return fmt.Errorf("embed_scale = %v: expected a positive number", n.EmbedScale)
	}
	return nil
}

// normFields are the keys of Norms in the config.json of Octet's own model types.
type normFields struct {
	Norm       string  `json:"norm,omitempty"`
	NoFinal    bool    `json:"no_final_norm,omitempty"`
	QK         string  `json:"qk_norm,omitempty"`
	LayerScale bool    `json:"layer_scale,omitempty"`
	EmbedScale float64 `json:"embed_scale,omitempty"`
}

// fields returns what a file of the family says of the norms; nil for those that imply them.
func (n Norms) fields(f family) *normFields {
	if f == families[llama] || f == families[qwen2] || f == families[qwen3] || f == families[mixtral] {
		return nil
	}
	fields := normFields(n)
	return &fields
}

func (f *fields) norms() Norms {
	return Norms{
		Norm: f.text("norm", ""), NoFinal: f.flag("no_final_norm"), QK: f.text("qk_norm", ""),
		LayerScale: f.flag("layer_scale"), EmbedScale: f.number("embed_scale", 0),
	}.Canonical()
}

// tensor is one of a layer, whose name is its path.
type tensor struct {
	name  string // without ".weight"; with ".bias"
	shape []int
}

// layer returns the tensors of a layer, given Llama's: those of the norms and scales added, and
// the norms that the model lacks removed.
func (n Norms) layer(llama []tensor, hidden, head int) (list []tensor) {
	for _, t := range llama {
		if n.Norm == "post" && (t.name == "input_layernorm" || t.name == "post_attention_layernorm") {
			continue
		}
		list = append(list, t)
	}
	if n.QK == "learned" {
		list = append(list, tensor{"self_attn.q_norm", []int{head}}, tensor{"self_attn.k_norm", []int{head}})
	}
	for _, part := range []string{"self_attn", "mlp"} {
		if n.Norm != "" {
			list = append(list, tensor{part + ".post_norm", []int{hidden}})
		}
		if n.LayerScale {
			list = append(list, tensor{part + ".layer_scale", []int{hidden}})
		}
	}
	return list
}
