package infer

import (
	"context"
	"errors"
	"fmt"

	"octet/backend"
	"octet/data"
	"octet/fp8"
	"octet/nn"
	"octet/recipe"
)

// ErrNoScales is wrapped by the error for a recipe that needs saved scales and weights
// without them.
var ErrNoScales = errors.New("saved scales")

// Evaluator measures the cross-entropy of a model over windows of seq tokens, in
// batches of windows.
type Evaluator struct {
	*session
	program               backend.Executable
	tokens, targets, loss *backend.Tensor
	batch, seq            int
}

// NewEvaluator loads a model on a device and casts its weights. The error is about the
// model, the recipe, the weights or the device.
func NewEvaluator(ctx context.Context, c nn.Config, r recipe.Recipe, w Weights, dev backend.Backend, batch, seq int) (*Evaluator, error) {
	s, err := newSession(c, r, dev.Spec())
	if err != nil {
		return nil, err
	}
	s.dev = dev
	n := batch * seq
	e := &Evaluator{
		session: s, batch: batch, seq: seq,
		tokens:  s.vars.Tensor(backend.Input, "tokens", fp8.I32, n),
		targets: s.vars.Tensor(backend.Input, "targets", fp8.I32, n),
		loss:    s.vars.Tensor(backend.Output, "loss", fp8.F32, 1),
	}
	p := s.pass("eval", batch, seq)
	p.Add(&backend.Sum{X: s.model.Loss(p, e.tokens, e.targets), Out: e.loss})
	loaded, err := s.start(ctx, w, p.Program)
	if err != nil {
		return nil, err
	}
	e.program = loaded[0]
	return e, nil
}

// Evaluate returns the mean cross-entropy of a stream in nats per token; every token but
// the first is a target once. After each batch it calls report, unless nil, with the
// number of targets so far, the total number, and the mean so far. A non-finite loss is
// an error.
func (e *Evaluator) Evaluate(ctx context.Context, stream data.Tokens, report func(done, all int64, mean float64)) (float64, error) {
	sweep, err := data.NewSweep(stream, e.seq)
	if err != nil {
		return 0, err
	}
	ids, next := make([]int32, e.batch*e.seq), make([]int32, e.batch*e.seq)
	total, done := 0.0, int64(0)
	for first := int64(0); first < sweep.Rows(); first += int64(e.batch) {
		n, err := sweep.Batch(first, ids, next)
		if err != nil {
			return 0, err
		}
		if err := e.writeInts(e.tokens, ids); err != nil {
			return 0, err
		}
		if err := e.writeInts(e.targets, next); err != nil {
			return 0, err
		}
		if err := e.program.Run(ctx); err != nil {
			return 0, err
		}
		sum, err := e.read(e.loss)
		if err != nil {
			return 0, err
		}
		if total += float64(sum[0]); total-total != 0 {
			return 0, fmt.Errorf("the loss of tokens %d to %d is %v, although all weights are finite; octet inspect shows the largest value of each tensor", done, done+int64(n), sum[0])
		}
		done += int64(n)
		if report != nil {
			report(done, sweep.Targets(), total/float64(done))
		}
	}
	return total / float64(sweep.Targets()), nil
}
