package train

import (
	"errors"
	"fmt"

	"octet/backend"
	"octet/nn"
	"octet/recipe"
)

// Network records the passes of a language model whose layers are on an [nn.Base], as
// [nn.Model] does. It has no run folder and no checkpoints: see ErrOwnNetwork. Tokens and
// targets are I32 [batch·seq].
type Network interface {
	// Loss appends a forward pass. It returns the cross-entropy of each token in nats, F32
	// [batch·seq], 0 where the target is negative.
	Loss(p *nn.Pass, tokens, targets *backend.Tensor) *backend.Tensor
	// LossAndGrads appends a forward and a backward pass and returns the losses of Loss.
	// It begins with [nn.Base.ClearMaxima] if p.First. Gradients are of the sum of the
	// losses times Control.InvTokens.
	LossAndGrads(p *nn.Pass, tokens, targets *backend.Tensor) *backend.Tensor
}

// ErrOwnNetwork is returned where a file would store, or set, the weights of a network that
// Config.Network declares.
var ErrOwnNetwork = errors.New("run folders and checkpoints store only decoders of the section model, not a network of Config.Network, whose weights Trainer.Weights returns")

// network declares the model under a recipe.
func (c Config) network(r recipe.Recipe, vars *backend.Vars) (*nn.Base, Network, error) {
	if c.Network == nil {
		shape := c.ModelConfig()
		shape.Shards, shape.Stage, shape.Tensor, shape.StepTokens = c.shards(), c.Train.ZeroStage, c.tensor(), int(c.stepTokens())
		m, err := nn.New(shape, r, vars)
		if err != nil {
			return nil, nil, err
		}
		return m.Base, m, nil
	}
	if c.tensor() > 1 {
		return nil, nil, fmt.Errorf("train.tensor_parallel = %d: ranks share the layers of decoders only, not those of Config.Network; use 1", c.tensor())
	}
	b, err := nn.NewBase(r, vars)
	if err != nil {
		return nil, nil, err
	}
	b.Shards, b.Stage, b.StepTokens = c.shards(), c.Train.ZeroStage, int(c.stepTokens())
	n, err := c.Network(b, c)
	switch {
	case err != nil:
		return nil, nil, err
	case n == nil:
		return nil, nil, errors.New("Config.Network returned nil")
	}
	return b, n, b.Build()
}

// linears lists the linear layers of the model, which do not depend on the recipe.
func (c Config) linears() ([]recipe.Layer, error) {
	if c.Network == nil {
		return c.ModelConfig().Linears()
	}
	plain, err := recipe.Lookup("fp32")
	if err != nil {
		return nil, err
	}
	b, _, err := c.network(plain, backend.NewVars())
	if err != nil {
		return nil, err
	}
	return b.Linears(), nil
}
