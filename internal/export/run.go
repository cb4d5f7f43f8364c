package export

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"octet/backend"
	"octet/checkpoint"
	"octet/fp8"
	"octet/infer"
	"octet/internal/hostmem"
	"octet/nn"
	"octet/run"
)

// activations are the values of hidden_act that an export may have. Transformers knows them.
var activations = []string{"silu", "gelu", "relu"}

// FromRun prepares the weights of a run for an export. If they were trained with Smooth-SwiGLU, it
// computes the smoothing scales on dev.
func FromRun(ctx context.Context, w *run.Weights, dev backend.Backend) (Model, error) {
	if act := w.HF.HiddenAct; !slices.Contains(activations, act) {
		return Model{}, fmt.Errorf("%s: octet exports models with silu, gelu or relu alone, not %q, which other programs do not know; the weights are in the checkpoint's model.safetensors", w.Path, act)
	}
	if w.HF.QKVBias && !w.HF.Foreign() {
		return Model{}, fmt.Errorf("%s: transformers has no model with biases of queries, keys and values alone and these layers: octet exports those with qkv_bias that are otherwise Qwen2's, which is Llama with them (no qk_norm, no experts, SwiGLU); the weights are in the checkpoint's model.safetensors", w.Path)
	}
	if !w.HF.Foreign() && w.HF.Norms.Foreign() {
		return Model{}, fmt.Errorf("%s: transformers has no model with these experts: octet exports those with the norms of Llama and at least two experts per token, since Mixtral makes the weight of a single one 1; the weights are in the checkpoint's model.safetensors", w.Path)
	}
	if !w.HF.Norms.Foreign() {
		return Model{}, fmt.Errorf("%s: transformers has no model with these norms (model.norm %s): octet exports pre-norm models with a final norm, with qk_norm none or learned, and without layer_scale and embed_scale; the weights are in the checkpoint's model.safetensors", w.Path, w.HF.Norms)
	}
	hostmem.LimitGo()
	m := Model{Config: w.HF, Param: w.Param}
	for name, shape := range w.HF.Layout() {
		m.List = append(m.List, checkpoint.Tensor{Name: name, Shape: shape})
	}
	switch tok, err := w.Tokenizer(); {
	case err == nil:
		m.Tokenizer = tok.Files
	case !errors.Is(err, run.ErrNoTokenizer):
		return Model{}, err
	}
	perToken := w.Recipe.Smooth.On() && w.Recipe.Smooth.Form.PerToken()
	m.ScaleInv = func(name string) (float32, error) {
		if perToken && strings.HasSuffix(name, ".mlp.hidden") {
			// The stored scale is that of the activation divided by each token's smoothing scale.
			return 0, fmt.Errorf("%s: an export in fp8 needs one scale of %s, which recipe %s scales per token; use --format bf16", w.Path, name, w.Recipe.Name)
		}
		var missing error
		// A scale for the E4M3 with maximum 240 also fits the exported E4M3 with maximum 448.
		for _, format := range []fp8.DType{fp8.E4M3, fp8.E4M3IEEE} {
			x, err := w.Scale(name + "." + format.String() + ".scale_inv")
			switch {
			case errors.Is(err, nn.ErrNoTensor):
				missing = cmp.Or(missing, err)
				continue
			case err == nil && len(x) != 1:
				err = fmt.Errorf("%s has %d scales: expected one", name, len(x))
			}
			if err != nil {
				return 0, fmt.Errorf("%s: %w", w.Path, err)
			}
			return x[0], nil
		}
		return 0, fmt.Errorf("%s: an export in fp8 needs the scale of %s, which only a run in FP8 stores: %w; use --format bf16", w.Path, name, missing)
	}
	if !w.Recipe.Smooth.On() || perToken {
		return m, nil // scales per token cannot be folded into the weights
	}
	smoothing, err := infer.MeasureSmoothing(ctx, w.Model, w.Recipe, w, dev)
	m.Smooth = smoothing
	return m, err
}
