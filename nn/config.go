package nn

import "fmt"

// Config is the shape of a Llama-style decoder. Widths are in elements.
type Config struct {
	Layers, Dim, Heads, KVHeads, FFN, Vocab int

	Tied       bool // the head shares the embedding matrix
	Activation Activation
	RopeTheta  float64
	NormEps    float64
	InitStd    float64 // o_proj and down_proj use InitStd/√(2·Layers)

	// Shards is the number of ranks that share the optimizer state: each holds an
	// equal share of the rows of every matrix's master weights (see Param). With 0
	// or 1 every rank holds all of them.
	Shards int
}

// HeadDim is the width of one head.
func (c Config) HeadDim() int { return c.Dim / c.Heads }

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
	case c.Dim%c.Heads != 0:
		return fmt.Errorf("model.dim = %d is not a multiple of model.heads = %d", c.Dim, c.Heads)
	case c.HeadDim()%2 != 0:
		return fmt.Errorf("model.dim / model.heads = %d: rotary embeddings need an even head size", c.HeadDim())
	case c.Heads%c.KVHeads != 0:
		return fmt.Errorf("model.heads = %d is not a multiple of model.kv_heads = %d", c.Heads, c.KVHeads)
	case !(c.RopeTheta > 1):
		return fmt.Errorf("model.rope_theta = %v: expected more than 1", c.RopeTheta)
	case !(c.NormEps > 0):
		return fmt.Errorf("model.norm_eps = %v: expected a positive number", c.NormEps)
	}
	return nil
}
