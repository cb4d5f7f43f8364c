package nn

import (
	"octet/backend"
	"octet/fp8"
	"octet/recipe"
)

// Mode selects where the casts of a pass get their scales.
type Mode uint8

const (
	// Train follows the recipe and records amaxes.
	Train Mode = iota
	// Calibrate computes every delayed scale as a current one, to fill empty
	// histories.
	Calibrate
	// Frozen takes per-tensor scales from the state of the last update and records
	// no amax. Evaluation and generation use it, since a maximum over tokens would
	// leak later tokens into earlier ones.
	Frozen
)

// Pass records one pass over the model: it holds the program and the properties
// of the batch. Layers keep no state of a pass.
type Pass struct {
	*backend.Program
	Mode       Mode
	Batch, Seq int             // number of sequences, and tokens in each
	Control    *backend.Tensor // step.control
	First      bool            // first micro-batch of a step: gradients are written, not accumulated
	Last       bool            // last micro-batch: gradients are complete and reduced over ranks
	Discard    bool            // no op reads the gradients, so they are not reduced
	Ranks      int             // with batches of their own
	// LossScale multiplies the gradient of the loss: every CrossEntropy, or what a model
	// has instead, takes it. nil is 1.
	LossScale *backend.Tensor
	// Weights multiply the gradients of the token losses, F32 [tokens], see
	// backend.CrossEntropy; nil is 1.
	Weights *backend.Tensor
	// Start separates documents in attention: the first position of its row that each token
	// may see, I32 [batch·seq], as in backend.Attention. nil: all earlier positions.
	Start *backend.Tensor
	// Losses is where Head.Loss writes the token losses, F32 [tokens]; nil: to a temp. It also
	// writes Correct, I32 [tokens], unless that is nil; see backend.CrossEntropy.
	Losses     *backend.Tensor
	Correct    *backend.Tensor
	Cache      *Cache          // keys and values of earlier positions; nil in training
	Health     *Health         // where casts and channels are measured; nil in training
	used       *backend.Tensor // MatMul.Used of an expert's rows; nil elsewhere
	headTokens int
	tensor     int // number of ranks that share each layer
	compute    fp8.DType
	reduce     recipe.Reduce
	scales     *Scales
	unsettled  *func(*Pass)     // adds the last scattered gradient, see addRows; shared by all copies of the pass
	root       *backend.Program // for temps whose names are full paths
}

// Tokens returns the number of tokens of the batch. An activation has a row for each token, or for each of
// ownTokens where the ranks of a tensor group divide the tokens.
func (p *Pass) Tokens() int { return p.Batch * p.Seq }

// At returns the pass with nodes recorded at a module's path.
func (p *Pass) At(scope string) *Pass {
	q := *p
	q.Program = p.Program.At(scope)
	return &q
}

// Backward returns the pass with nodes marked as backward.
func (p *Pass) Backward() *Pass {
	q := *p
	q.Program = p.Program.Phase(backend.Backward)
	return &q
}

// InBlock returns the pass with nodes recorded as part of a block.
func (p *Pass) InBlock(name string) *Pass {
	q := *p
	q.Program = p.Program.Block(name)
	return &q
}

// temp declares a temp in the compute format.
func (p *Pass) temp(name string, rows, cols int) *backend.Tensor {
	return p.Temp(name, p.compute, rows, cols)
}

// store declares a temp in the compute format and returns it with its cast.
func (p *Pass) store(name string, rows, cols int) (*backend.Tensor, []backend.Cast) {
	t := p.temp(name, rows, cols)
	return t, []backend.Cast{{Out: t}}
}
