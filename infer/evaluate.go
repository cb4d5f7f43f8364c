package infer

import (
	"context"
	"errors"

	"octet/backend"
	"octet/data"
	"octet/fp8"
	"octet/nn"
	"octet/recipe"
)

// ErrNoScales is wrapped by the errors that refuse a recipe whose scales the weights
// do not bring along.
var ErrNoScales = errors.New("saved scales")

// Evaluate is the mean cross-entropy of a stream under the weights, in nats
// per token: windows of seq tokens, batch at a time, every token a target once.
func Evaluate(ctx context.Context, c nn.Config, r recipe.Recipe, w Weights, dev backend.Backend, stream data.Tokens, batch, seq int) (float64, error) {
	sweep, err := data.NewSweep(stream, seq)
	if err != nil {
		return 0, err
	}
	s, err := newSession(c, r, dev)
	if err != nil {
		return 0, err
	}
	n := batch * seq
	tokens := s.vars.Tensor(backend.Input, "tokens", fp8.I32, n)
	targets := s.vars.Tensor(backend.Input, "targets", fp8.I32, n)
	loss := s.vars.Tensor(backend.Output, "loss", fp8.F32, 1)
	p := s.pass("eval", batch, seq)
	p.Add(&backend.Sum{X: s.model.Loss(p, tokens, targets), Out: loss})
	loaded, err := s.start(ctx, w, p.Program)
	if err != nil {
		return 0, err
	}
	ids, next := make([]int32, n), make([]int32, n)
	total := 0.0
	for first := int64(0); first < sweep.Rows(); first += int64(batch) {
		if _, err := sweep.Batch(first, ids, next); err != nil {
			return 0, err
		}
		if err := s.writeInts(tokens, ids); err != nil {
			return 0, err
		}
		if err := s.writeInts(targets, next); err != nil {
			return 0, err
		}
		if err := loaded[0].Run(ctx); err != nil {
			return 0, err
		}
		sum, err := s.read(loss)
		if err != nil {
			return 0, err
		}
		total += float64(sum[0])
	}
	return total / float64(sweep.Targets()), nil
}
