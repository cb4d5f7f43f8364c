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

// Windows are the windows of tokens that an Evaluator measures.
type Windows struct {
	Batch, Seq int // windows in a batch, tokens in a window
	// Documents says that a token attends to its own document only, as in
	// training with data.attention = "document". EndOfText ends a document: see data.Corpus.
	Documents bool
	EndOfText int32
}

// ErrNoScales is wrapped by the error for a recipe that needs saved scales and weights
// without them.
var ErrNoScales = errors.New("saved scales")

// Evaluator measures the cross-entropy of a model over windows of seq tokens, in
// batches of windows.
type Evaluator struct {
	*session
	program               backend.Executable
	tokens, targets, loss *backend.Tensor
	windows               Windows
	start                 *backend.Tensor // nil without Documents
	ids, next, starts     []int32         // of a batch: tokens, targets, and starts of documents
	last                  *backend.Tensor // logits after the last token of each window; nil if not asked for
	// Sharpness is the mean of the function Sharpness over the windows of the last stream,
	// without an incomplete one. Only the Evaluator of NewSharpnessEvaluator measures it.
	Sharpness float64
	// Calibrated is the number of tokens from which the scales were measured; 0 if they
	// were saved with the weights, or the recipe needs none.
	Calibrated int64
}

// calibrationBatches is the number of batches from which scales are measured, as many as the
// updates from whose amaxes evaluation takes current scales.
const calibrationBatches = 16

// NewEvaluator loads a model on a device and casts its weights. If w lacks scales that the
// recipe needs, as after a run with another recipe, NewEvaluator measures all of them in up
// to 16 batches, spread evenly over the tokens of calibration; if that is nil, the error
// wraps ErrNoScales. Other errors are about the model, the recipe, the weights or the device.
func NewEvaluator(ctx context.Context, c nn.Config, r recipe.Recipe, w Weights, dev backend.Backend, windows Windows, calibration data.Tokens) (*Evaluator, error) {
	return newEvaluator(ctx, c, r, w, dev, windows, calibration, false)
}

// NewSharpnessEvaluator is NewEvaluator for an Evaluator that also measures Sharpness.
func NewSharpnessEvaluator(ctx context.Context, c nn.Config, r recipe.Recipe, w Weights, dev backend.Backend, windows Windows, calibration data.Tokens) (*Evaluator, error) {
	return newEvaluator(ctx, c, r, w, dev, windows, calibration, true)
}

func newEvaluator(ctx context.Context, c nn.Config, r recipe.Recipe, w Weights, dev backend.Backend, windows Windows, calibration data.Tokens, sharpness bool) (*Evaluator, error) {
	s, err := newSession(c, r, dev.Spec())
	if err != nil {
		return nil, err
	}
	s.dev = dev
	e := s.evaluator(windows)
	if sharpness {
		e.last = s.vars.Tensor(backend.Output, "last", fp8.F32, windows.Batch, c.PaddedVocab())
	}
	p := s.pass("eval", windows.Batch, windows.Seq)
	p.Start = e.start
	p.Add(&backend.Sum{X: s.model.LossAndLast(p, e.tokens, e.targets, e.last), Out: e.loss})
	scales, err := s.scales(w)
	if !errors.Is(err, ErrNoScales) {
		calibration = nil
	}
	if err != nil && calibration == nil {
		return nil, err
	}
	programs := []*backend.Program{p.Program}
	if calibration != nil {
		programs = append(programs, e.recordCalibrate())
	}
	loaded, err := s.prepare(w, scales, programs...)
	if err != nil {
		return nil, err
	}
	e.program = loaded[0]
	if calibration != nil {
		if err := e.calibrate(ctx, loaded[1], calibration); err != nil {
			return nil, err
		}
	}
	return e, loaded[len(programs)].Run(ctx)
}

// evaluator declares the inputs and the result of an Evaluator without programs.
func (s *session) evaluator(windows Windows) *Evaluator {
	n := windows.Batch * windows.Seq
	e := &Evaluator{
		session: s, windows: windows, ids: make([]int32, n), next: make([]int32, n),
		tokens:  s.vars.Tensor(backend.Input, "tokens", fp8.I32, n),
		targets: s.vars.Tensor(backend.Input, "targets", fp8.I32, n),
		loss:    s.vars.Tensor(backend.Output, "loss", fp8.F32, 1),
	}
	if windows.Documents {
		e.starts = make([]int32, n)
		e.start = s.vars.Tensor(backend.Input, "start", fp8.I32, n)
	}
	return e
}

// recordCalibrate records a forward with current scales, whose amaxes become the newest row
// of the histories, and the scales that follow from these.
func (e *Evaluator) recordCalibrate() *backend.Program {
	p := e.model.Pass(e.vars.Program("calibrate"), nn.Calibrate, nn.Shape{Batch: e.windows.Batch, Seq: e.windows.Seq, Control: e.control, Start: e.start})
	e.model.ClearMaxima(p)
	e.model.CastWeights(p)
	p.Add(&backend.Sum{X: e.model.Loss(p, e.tokens, e.targets), Out: e.loss})
	e.model.UpdateScales(p.Program, nil)
	return p.Program
}

// calibrate runs the program of recordCalibrate on batches of the stream.
func (e *Evaluator) calibrate(ctx context.Context, program backend.Executable, stream data.Tokens) (err error) {
	e.Calibrated, err = e.spread(stream, func() error { return program.Run(ctx) })
	return err
}

// Observe computes up to 16 batches, spread evenly over the stream, op by op. It calls
// observe after each op.
func (e *Evaluator) Observe(ctx context.Context, stream data.Tokens, observe backend.Observer) error {
	_, err := e.spread(stream, func() error { return e.program.RunObserved(ctx, observe) })
	return err
}

// spread feeds up to 16 batches, spread evenly over the stream, and calls run after each. It
// returns the number of targets.
func (e *Evaluator) spread(stream data.Tokens, run func() error) (targets int64, err error) {
	sweep, err := data.NewSweep(stream, e.windows.Seq)
	if err != nil {
		return 0, err
	}
	all := max(1, sweep.Targets()/int64(len(e.ids))) // without padding
	batches := min(all, calibrationBatches)
	for i := range batches {
		n, err := e.feed(sweep, i*all/batches*int64(e.windows.Batch))
		if err == nil {
			err = run()
		}
		if err != nil {
			return 0, err
		}
		targets += int64(n)
	}
	return targets, nil
}

// feed writes the batch of windows from index first on, and returns its number of targets.
func (e *Evaluator) feed(sweep *data.Sweep, first int64) (targets int, err error) {
	targets, err = sweep.Batch(first, e.ids, e.next)
	if err == nil {
		err = e.writeInts(e.tokens, e.ids)
	}
	if err == nil {
		err = e.writeInts(e.targets, e.next)
	}
	if err == nil && e.start != nil {
		data.Starts(e.starts, e.ids, e.windows.Seq, e.windows.EndOfText)
		err = e.writeInts(e.start, e.starts)
	}
	return targets, err
}

// Evaluate returns the mean cross-entropy of a stream in nats per token; every token but
// the first is a target once. After each batch it calls report, unless nil, with the
// number of targets so far, the total number, and the mean so far. A non-finite loss is
// an error.
func (e *Evaluator) Evaluate(ctx context.Context, stream data.Tokens, report func(done, all int64, mean float64)) (float64, error) {
	sweep, err := data.NewSweep(stream, e.windows.Seq)
	if err != nil {
		return 0, err
	}
	total, done := 0.0, int64(0)
	var sharp mean
	for first := int64(0); first < sweep.Rows(); first += int64(e.windows.Batch) {
		n, err := e.feed(sweep, first)
		if err != nil {
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
		if e.last != nil {
			if err := e.addSharpness(&sharp); err != nil {
				return 0, err
			}
		}
		done += int64(n)
		if report != nil {
			report(done, sweep.Targets(), total/float64(done))
		}
	}
	e.Sharpness = sharp.sum / float64(sharp.n)
	return total / float64(sweep.Targets()), nil
}
