package infer

import (
	"context"
	"fmt"

	"octet/backend"
	"octet/fp8"
	"octet/nn"
	"octet/recipe"
)

// Path is one way to compute the logits after every token of a window: that of training, or that of
// generation.
type Path struct {
	*session
	program        backend.Executable
	tokens, logits *backend.Tensor
	raw            []byte
	rows           [][]float32 // [seq][vocabulary], of the last window
}

// NewTrainingPath loads a model on a device for the forward of a training step: current scales follow
// from the window itself, delayed ones from the state.
func NewTrainingPath(ctx context.Context, c nn.Config, r recipe.Recipe, w Weights, dev backend.Backend, seq int) (*Path, error) {
	return newPath(ctx, c, r, w, dev, seq, func(s *session) *nn.Pass {
		return s.model.Pass(s.vars.Program("forward"), nn.Train, nn.Shape{Batch: 1, Seq: seq, Control: s.control})
	})
}

// NewInferencePath loads a model on a device for generation: a prefill of the whole window, which
// attends to the keys and values of a cache in a format (see Cache.Format).
func NewInferencePath(ctx context.Context, c nn.Config, r recipe.Recipe, w Weights, dev backend.Backend, seq int, format fp8.DType) (*Path, error) {
	return newPath(ctx, c, r, w, dev, seq, func(s *session) *nn.Pass {
		p := s.pass("prefill", 1, seq)
		p.Cache = s.model.NewCache(1, seq, format)
		return p
	})
}

func newPath(ctx context.Context, c nn.Config, r recipe.Recipe, w Weights, dev backend.Backend, seq int, pass func(*session) *nn.Pass) (*Path, error) {
	if seq < 1 {
		return nil, fmt.Errorf("a window of %d tokens: expected at least 1", seq)
	}
	s, err := newSession(c, r, dev.Spec())
	if err != nil {
		return nil, err
	}
	s.dev = dev
	p := &Path{
		session: s,
		tokens:  s.vars.Tensor(backend.Input, "tokens", fp8.I32, seq),
		logits:  s.vars.Tensor(backend.Output, "logits", fp8.F32, seq, c.PaddedVocab()),
	}
	forward := pass(s)
	s.model.Logits(forward, p.tokens, p.logits)
	loaded, err := s.start(ctx, w, forward.Program)
	if err != nil {
		return nil, err
	}
	p.program, p.raw = loaded[0], make([]byte, p.logits.Bytes())
	for range seq {
		p.rows = append(p.rows, make([]float32, c.Vocab))
	}
	return p, nil
}

// Logits returns the logits [seq][vocabulary] after each token of a window, valid until the next call.
// It calls observe, unless nil, after each op.
func (p *Path) Logits(ctx context.Context, ids []int32, observe backend.Observer) ([][]float32, error) {
	if len(ids) != len(p.rows) {
		return nil, fmt.Errorf("%d tokens: expected a window of %d", len(ids), len(p.rows))
	}
	err := p.at(0)
	if err == nil {
		err = p.writeInts(p.tokens, ids)
	}
	switch {
	case err != nil:
	case observe != nil:
		err = p.program.RunObserved(ctx, observe)
	default:
		err = p.program.Run(ctx)
	}
	if err == nil {
		err = p.dev.Read(p.logits, p.raw)
	}
	if err != nil {
		return nil, err
	}
	stride := len(p.raw) / len(p.rows)
	for i, row := range p.rows {
		fp8.F32.Decode(row, p.raw[i*stride:])
	}
	return p.rows, nil
}
