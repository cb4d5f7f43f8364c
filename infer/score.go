package infer

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"

	"octet/backend"
	"octet/data"
	"octet/fp8"
	"octet/nn"
	"octet/recipe"
)

// Row is a sequence of tokens of which the last Scored are scored, each after those before it.
type Row struct {
	IDs    []int32
	Scored int
}

// Clip returns the row without the first tokens that do not fit a window: it keeps the last
// window+1, of which the last is only a target. More scored tokens than the window are an error.
func (r Row) Clip(window int) (Row, error) {
	if r.Scored > window {
		return Row{}, fmt.Errorf("%d tokens are scored, but the window has %d: use a larger --seq", r.Scored, window)
	}
	r.IDs = r.IDs[max(0, len(r.IDs)-window-1):]
	return r, nil
}

// inputs returns the number of tokens that the model reads.
func (r Row) inputs() int { return len(r.IDs) - 1 }

// Score is the result of a row.
type Score struct {
	LogLikelihood float64 // of the scored tokens, in nats: the sum of their log-softmax
	Greedy        bool    // each scored token has the largest logit, of equal ones the first
}

// Scorer computes scores of rows, in batches of rows of similar length. A row is padded at its
// end, where causal attention hides the padding. Scales of whole tensors are those of the
// weights' state, so a score depends on other rows only where tokens of several rows share a scale.
type Scorer struct {
	*session
	shapes []scorerShape // the shortest first
	// Calibrated is that of an Evaluator.
	Calibrated int64
}

// scorerShape is a program for batches of a length.
type scorerShape struct {
	program                          backend.Executable
	tokens, targets, losses, correct *backend.Tensor
	batch, seq                       int
}

// A Scorer has at most scorerShapes programs, for lengths that are multiples of scorerStep.
const (
	scorerShapes = 6
	scorerStep   = 16
)

// NewScorer loads a model on a device and casts its weights, to score these rows, or others that
// are not longer. A batch has at most as many tokens as one of windows, or one row. In windows, missing
// scales are measured on calibration, as by NewEvaluator.
func NewScorer(ctx context.Context, c nn.Config, r recipe.Recipe, w Weights, dev backend.Backend, windows Windows, rows []Row, calibration data.Tokens) (*Scorer, error) {
	session, err := newSession(c, r, dev.Spec())
	if err != nil {
		return nil, err
	}
	session.dev = dev
	s := &Scorer{session: session}
	var programs []*backend.Program
	list, tokens := lengths(rows), windows.Batch*windows.Seq
	for i, seq := range list {
		share := (len(rows) + len(list) - 1) / len(list)
		programs = append(programs, s.record(i, seq, max(1, min(tokens/seq, share))))
	}
	if len(programs) == 0 {
		return nil, errors.New("there are no rows to score")
	}
	scales, err := s.scales(w)
	if !errors.Is(err, ErrNoScales) {
		calibration = nil
	}
	if err != nil && calibration == nil {
		return nil, err
	}
	var e *Evaluator
	if calibration != nil {
		e = s.evaluator(windows)
		programs = append(programs, e.recordCalibrate())
	}
	loaded, err := s.prepare(w, scales, programs...)
	if err != nil {
		return nil, err
	}
	for i := range s.shapes {
		s.shapes[i].program = loaded[i]
	}
	if e != nil {
		if err := e.calibrate(ctx, loaded[len(s.shapes)], calibration); err != nil {
			return nil, err
		}
		s.Calibrated = e.Calibrated
	}
	return s, loaded[len(programs)].Run(ctx)
}

// lengths returns the lengths to which rows are padded, ascending: each is enough for as many more
// of the rows.
func lengths(rows []Row) (list []int) {
	all := make([]int, len(rows))
	for i, r := range rows {
		all[i] = (max(1, r.inputs()) + scorerStep - 1) / scorerStep * scorerStep
	}
	slices.Sort(all)
	for k := 1; k <= scorerShapes && len(all) > 0; k++ {
		list = append(list, all[(k*len(all)+scorerShapes-1)/scorerShapes-1])
	}
	return slices.Compact(list)
}

// record records the program of shape i.
func (s *Scorer) record(i, seq, batch int) *backend.Program {
	name, n := fmt.Sprintf("score%d", i), batch*seq
	shape := scorerShape{
		batch: batch, seq: seq,
		tokens:  s.vars.Tensor(backend.Input, name+".tokens", fp8.I32, n),
		targets: s.vars.Tensor(backend.Input, name+".targets", fp8.I32, n),
		losses:  s.vars.Tensor(backend.Output, name+".losses", fp8.F32, n),
		correct: s.vars.Tensor(backend.Output, name+".correct", fp8.I32, n),
	}
	p := s.pass(name, batch, seq)
	p.Losses, p.Correct = shape.losses, shape.correct
	s.model.Loss(p, shape.tokens, shape.targets)
	s.shapes = append(s.shapes, shape)
	return p.Program
}

// Score returns the scores of rows, in their order. After each batch it calls report, unless nil,
// with the number of rows so far. A log-likelihood that is NaN is an error.
func (s *Scorer) Score(ctx context.Context, rows []Row, report func(done int)) ([]Score, error) {
	vocab := int32(s.model.Config.Vocab)
	for i, r := range rows {
		if r.Scored < 1 || r.Scored > r.inputs() {
			return nil, fmt.Errorf("row %d has %d tokens, of which %d are scored: expected at least one, and one before them", i, len(r.IDs), r.Scored)
		}
		if longest := s.shapes[len(s.shapes)-1].seq; r.inputs() > longest {
			return nil, fmt.Errorf("row %d has %d tokens, but this Scorer was loaded for %d", i, len(r.IDs), longest+1)
		}
		if at := slices.IndexFunc(r.IDs, func(id int32) bool { return id < 0 || id >= vocab }); at >= 0 {
			return nil, fmt.Errorf("row %d: id %d is not in the vocabulary of %d tokens", i, r.IDs[at], vocab)
		}
	}
	order := make([]int, len(rows)) // the longest first: if memory is short, the first batch fails
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(i, j int) int { return cmp.Compare(rows[j].inputs(), rows[i].inputs()) })
	scores := make([]Score, len(rows))
	for done := 0; done < len(order); {
		longest := rows[order[done]].inputs()
		at := slices.IndexFunc(s.shapes, func(shape scorerShape) bool { return shape.seq >= longest })
		part := order[done:min(len(order), done+s.shapes[at].batch)]
		if err := s.run(ctx, s.shapes[at], rows, part, scores); err != nil {
			return nil, err
		}
		if done += len(part); report != nil {
			report(done)
		}
	}
	return scores, nil
}

// run scores a batch: the rows of these indexes.
func (s *Scorer) run(ctx context.Context, shape scorerShape, rows []Row, part []int, scores []Score) error {
	ids, targets := make([]int32, shape.batch*shape.seq), make([]int32, shape.batch*shape.seq)
	for i := range targets {
		targets[i] = data.IgnoreTarget
	}
	for i, index := range part {
		r := rows[index]
		copy(ids[i*shape.seq:], r.IDs[:r.inputs()])
		copy(targets[i*shape.seq+r.inputs()-r.Scored:], r.IDs[len(r.IDs)-r.Scored:])
	}
	err := s.writeInts(shape.tokens, ids)
	if err == nil {
		err = s.writeInts(shape.targets, targets)
	}
	if err == nil {
		err = shape.program.Run(ctx)
	}
	if err != nil {
		return err
	}
	losses, err := s.read(shape.losses)
	if err != nil {
		return err
	}
	correct := make([]byte, shape.correct.Bytes())
	if err := s.dev.Read(shape.correct, correct); err != nil {
		return err
	}
	for i, index := range part {
		score := Score{Greedy: true}
		last := i*shape.seq + rows[index].inputs()
		for at := last - rows[index].Scored; at < last; at++ {
			score.LogLikelihood -= float64(losses[at])
			score.Greedy = score.Greedy && binary.LittleEndian.Uint32(correct[4*at:]) == 1
		}
		if math.IsNaN(score.LogLikelihood) {
			return fmt.Errorf("row %d: the log-likelihood is NaN, although all weights are finite; octet inspect shows the largest value of each tensor", index)
		}
		scores[index] = score
	}
	return nil
}
