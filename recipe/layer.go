package recipe

import (
	"slices"
	"strconv"
	"strings"
)

// Layer is a linear layer of a model, as far as a recipe depends on it. A model lists its
// layers: nn.Base.Linears.
type Layer struct {
	Scope  string // path, which rows match: "layers.3.mlp.up_proj"
	Hidden bool   // its input is the hidden activation of an MLP, which Smooth-SwiGLU smooths
	Head   bool   // its GEMMs run in the compute format
	Router bool   // of a mixture of experts: its GEMMs run in the compute format, whatever rows say
}

// Paths lists the paths of layers in their order, with layers merged that differ in
// their number only: "layers.*.mlp.up_proj".
func Paths(layers []Layer) (list []string) {
	for _, l := range layers {
		if path, _ := l.fold(); !slices.Contains(list, path) {
			list = append(list, path)
		}
	}
	return list
}

// fold returns the path with * for its number, and the number, "" without one.
func (l Layer) fold() (path, number string) {
	parts := strings.Split(l.Scope, ".")
	for i, part := range parts {
		if _, err := strconv.Atoi(part); err == nil {
			parts[i] = "*"
			return strings.Join(parts, "."), part
		}
	}
	return l.Scope, ""
}

// QuantizesHidden reports whether a GEMM of the layer reads the hidden activation of an
// MLP in FP8. Smooth-SwiGLU applies to these layers.
func (r Recipe) QuantizesHidden(l Layer) bool {
	return l.Hidden && (r.Cast(l, Fprop, Input).DType.IsQuantized() || r.Cast(l, Wgrad, Input).DType.IsQuantized())
}
