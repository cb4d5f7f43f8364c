package nn

import (
	"cmp"
	"fmt"
	"math"
	"slices"
)

// Config is the shape of a Llama-style decoder. Widths are in elements.
type Config struct {
	Layers, Dim, Heads, KVHeads, FFN, Vocab int

	Tied       bool // the head shares the embedding matrix
	Activation Activation
	RopeTheta  float64
	NormEps    float64
	InitStd    float64 // o_proj and down_proj use InitStd/√(2·Layers)
	FanIn      bool    // the weights of linear layers start with 1/√in instead, InitStd is the embedding's

	// The zero values of these fields are Llama's.
	HeadSize    int // width of a head; 0: Dim / Heads
	RopeScaling RopeScaling
	QKVBias     bool     // q_proj, k_proj and v_proj have a bias
	Norm        Norm     // where each layer normalizes
	NormGain    float64  // of the norms after attention and MLP at the start; 0: 1
	NoFinalNorm bool     // the head reads the residual stream itself
	QKNorm      QKNorm   // of queries and keys
	LayerScale  *float64 // initial value of the vectors that multiply the results of attention and MLP; nil: none
	EmbedScale  float64  // multiplies what the embedding returns; 0: 1

	MoE MoEShape // experts in place of each MLP; its zero value: none

	// StepTokens is the number of tokens of a step, over all ranks: see [Base]. It matters to
	// gradients with scaling [recipe.Constant] alone.
	StepTokens int

	// Shards is the number of ranks that share the optimizer state: each holds an
	// equal share of the rows of every matrix's master weights (see Param). With 0
	// or 1 every rank holds all of them.
	Shards int
	Stage  int // of ZeRO, as in Base
	// Tensor is the number of ranks that share each layer, as in Base. It divides Heads and KVHeads, and
	// 16·Tensor divides FFN.
	Tensor int
}

// Norm says where a decoder layer normalizes: before attention and MLP, or their results.
type Norm string

// The values of Norm. The empty one counts as pre.
const (
	PreNorm   Norm = "pre"  // x + f(norm(x))
	PostNorm  Norm = "post" // x + norm(f(x))
	BothNorms Norm = "both" // x + norm(f(norm(x)))
)

// HeadDim is the width of one head.
func (c Config) HeadDim() int { return cmp.Or(c.HeadSize, c.Dim/c.Heads) }

// PaddedVocab is the number of rows of the embedding and head: the vocabulary
// rounded up to a multiple of 16, which FP8 GEMMs require. The cross-entropy
// leaves the padding rows out.
func (c Config) PaddedVocab() int { return (c.Vocab + 15) / 16 * 16 }

// Validate reports a shape that cannot be built. Package train checks the
// multiples of 16 that FP8 GEMMs require.
func (c Config) Validate() error {
	for _, f := range []struct {
		name string
		n    int
	}{{"layers", c.Layers}, {"dim", c.Dim}, {"heads", c.Heads}, {"kv_heads", c.KVHeads}, {"ffn", c.FFN}, {"vocab", c.Vocab}} {
		if f.n < 1 || f.n > 1<<24 {
			return fmt.Errorf("model.%s = %d: expected a number from 1 to 2^24", f.name, f.n)
		}
	}
	if _, err := LookupActivation(c.Activation); err != nil {
		return fmt.Errorf("model.activation: %w", err)
	}
	switch {
	case c.HeadSize < 0 || c.HeadSize > 1<<24:
		return fmt.Errorf("model.head_dim = %d: expected 0 or a number up to 2^24", c.HeadSize)
	case c.HeadSize == 0 && c.Dim%c.Heads != 0:
		return fmt.Errorf("model.dim = %d is not a multiple of model.heads = %d", c.Dim, c.Heads)
	case c.HeadDim()%2 != 0:
		return fmt.Errorf("a head size of %d: rotary embeddings need an even head size", c.HeadDim())
	case c.Heads%c.KVHeads != 0:
		return fmt.Errorf("model.heads = %d is not a multiple of model.kv_heads = %d", c.Heads, c.KVHeads)
	case !(c.RopeTheta > 1):
		return fmt.Errorf("model.rope_theta = %v: expected more than 1", c.RopeTheta)
	case !(c.NormEps > 0):
		return fmt.Errorf("model.norm_eps = %v: expected a positive number", c.NormEps)
	case !slices.Contains([]Norm{"", PreNorm, PostNorm, BothNorms}, c.Norm):
		return fmt.Errorf("model.norm = %q: expected %s, %s or %s", c.Norm, PreNorm, PostNorm, BothNorms)
	case !slices.Contains([]QKNorm{"", NoQKNorm, LearnedQKNorm, FrozenQKNorm}, c.QKNorm):
		return fmt.Errorf("model.qk_norm = %q: expected %s, %s or %s", c.QKNorm, NoQKNorm, LearnedQKNorm, FrozenQKNorm)
	case c.LayerScale != nil && (c.Norm == PostNorm || c.Norm == BothNorms):
		return fmt.Errorf("model.layer_scale with model.norm = %q: the gain of the norm after attention and MLP multiplies the same values; use model.norm_gain", c.Norm)
	}
	if err := c.RopeScaling.Validate(); err != nil {
		return fmt.Errorf("model.rope_scaling: %w", err)
	}
	if err := c.validateTensor(); err != nil {
		return err
	}
	return c.MoE.validate()
}

// validateTensor reports a shape that the ranks of a tensor group cannot divide.
func (c Config) validateTensor() error {
	if c.Tensor < 2 {
		return nil
	}
	if c.MoE.Experts > 0 {
		return fmt.Errorf("model.experts = %d with train.tensor_parallel = %d: ranks do not share experts; use train.tensor_parallel = 1, and train.zero_stage = 3 to save memory", c.MoE.Experts, c.Tensor)
	}
	for _, f := range []struct {
		key     string
		n, unit int
	}{
		{"model.heads", c.Heads, c.Tensor},
		{"model.kv_heads", c.KVHeads, c.Tensor},
		{"model.ffn", c.FFN, 16 * c.Tensor},
		{"model.kv_heads times the head size", c.KVHeads * c.HeadDim(), 16 * c.Tensor},
	} {
		if f.n%f.unit != 0 {
			return fmt.Errorf("%s = %d is not a multiple of %d, which train.tensor_parallel = %d needs", f.key, f.n, f.unit, c.Tensor)
		}
	}
	return nil
}

// std returns the standard deviation of the initial weights of a linear layer with in inputs.
func (c Config) std(in int) float64 {
	if c.FanIn {
		return 1 / math.Sqrt(float64(in))
	}
	return c.InitStd
}

// outStd is std for the projections that add to the residual stream. They start smaller, so
// that its variance does not grow with depth.
func (c Config) outStd(in int) float64 {
	if c.FanIn {
		return c.std(in)
	}
	return c.InitStd / math.Sqrt(2*float64(c.Layers))
}
