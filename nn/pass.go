package nn

import (
	"octet/backend"
	"octet/fp8"
)

// Mode is how casts get their scales while a pass is recorded.
type Mode uint8

const (
	// Train follows the recipe and records amaxes.
	Train Mode = iota
	// Calibrate makes every delayed scale current, to fill empty histories.
	Calibrate
	// Frozen takes every scale from the state that updates left behind and
	// records nothing: evaluation and generation, where a maximum over tokens
	// would let the past see the future.
	Frozen
)

// Pass is one pass over the model while it is being recorded: the program
// and what the layers must know of the batch. Layers keep no state of it.
type Pass struct {
	*backend.Program
	Mode       Mode
	Batch, Seq int             // sequences, and tokens of each
	Control    *backend.Tensor // step.control
	First      bool            // first micro-batch of a step: gradients are written, not added
	Last       bool            // last micro-batch: gradients are complete and reduced over ranks
	Ranks      int
	Cache      *Cache  // keys and values of earlier positions; nil in training
	Health     *Health // where casts and channels are measured; nil in training
	headTokens int
	compute    fp8.DType
	scales     *Scales
	root       *backend.Program // for temps whose name is already a full path
}

// Tokens is the number of rows of every activation.
func (p *Pass) Tokens() int { return p.Batch * p.Seq }

// at returns the pass at a module's path.
func (p *Pass) at(scope string) *Pass {
	q := *p
	q.Program = p.Program.At(scope)
	return &q
}

// backward returns the pass with nodes marked as backward.
func (p *Pass) backward() *Pass {
	q := *p
	q.Program = p.Program.Phase(backend.Backward)
	return &q
}

// inBlock returns the pass whose nodes form a block.
func (p *Pass) inBlock(name string) *Pass {
	q := *p
	q.Program = p.Program.Block(name)
	return &q
}

// temp declares a temp in the compute format.
func (p *Pass) temp(name string, rows, cols int) *backend.Tensor {
	return p.Temp(name, p.compute, rows, cols)
}

// store is the plain cast into the compute format.
func (p *Pass) store(name string, rows, cols int) (*backend.Tensor, []backend.Cast) {
	t := p.temp(name, rows, cols)
	return t, []backend.Cast{{Out: t}}
}
