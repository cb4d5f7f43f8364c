package train

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"

	"golang.org/x/sync/errgroup"

	"octet/backend"
	"octet/data"
)

// Trainer runs a job on devices: it writes batches, runs the programs of a step
// and reads back the results. Use it from one goroutine.
type Trainer struct {
	*Job // of the current recipe

	// Reopen closes the trainer's devices and opens the same ones again, since a
	// backend can be bound only once. Changes of recipe need it: those of
	// precision.schedule, and Init and Restore across one. A run without a schedule
	// does not.
	Reopen func() ([]backend.Backend, error)

	// Execute, if set, runs the programs of rank 0 in place of x.Run(ctx), for example
	// to observe nodes or measure their times. It may be set between two steps and does
	// not affect a step in flight.
	Execute func(ctx context.Context, program string, x backend.Executable) error

	// Converted reports whether the last Restore rounded moments from another E4M3
	// variant, which another device had written.
	Converted bool

	corpus *data.Corpus
	ranks  []*rank // none if Reopen failed

	// runStep, bound once, so that a step allocates nothing.
	boundRunStep func(context.Context, *rank) error

	step       int // completed steps, skipped ones included
	flights    flights
	skipped    int // consecutive skipped steps
	rewinds    int // see Rewind
	spikes     spikes
	calibrated bool       // the calibration of the current recipe is done
	histories  [][]byte   // packed scale state before the calibration; nil after it, and without weights
	hostState  *hostState // host copy of the state during a change of recipe, else nil
	alignment  alignmentWatch
}

// rank is one device, which trains on its share of every batch.
type rank struct {
	index   int
	backend backend.Backend
	loader  *data.Loader
	sweep   *data.Sweep // nil without validation data

	micro                            map[Variant]program
	update, calibrate, prepare, eval program
	health                           program          // zero without train.health_every
	reports                          [2]backend.Fetch // result copies, alternating between steps; nil if Run is synchronous

	tokens, targets []int32
	bytes           []byte
	words           [4 * reportWords]byte // results as read from the device
}

// program is a loaded program.
type program struct {
	backend.Executable
	name string
}

// run runs a program, on rank 0 through Execute if that is set.
func (t *Trainer) run(ctx context.Context, r *rank, p program) error {
	if t.Execute != nil && r.index == 0 {
		return t.Execute(ctx, p.name, p.Executable)
	}
	return p.Run(ctx)
}

// NewTrainer binds a job to devices, one for each rank, and loads its programs.
// Call Init, InitFrom or Restore next to set the weights.
func NewTrainer(j *Job, corpus *data.Corpus, devices []backend.Backend) (*Trainer, error) {
	if len(devices) != j.Config.Train.Ranks {
		return nil, fmt.Errorf("train.ranks = %d, but %d devices are given", j.Config.Train.Ranks, len(devices))
	}
	t := &Trainer{Job: j, corpus: corpus}
	t.boundRunStep = t.runStep
	if err := t.open(devices); err != nil {
		return nil, err
	}
	return t, nil
}

// open binds the job to devices and loads its programs there.
func (t *Trainer) open(devices []backend.Backend) error {
	j, corpus := t.Job, t.corpus
	seq := j.Config.Data.Seq
	spec := devices[0].Spec() // that of all
	lowered, err := backend.Lower(spec, j.Programs()...)
	if err != nil {
		return err
	}
	var ranks []*rank
	for i, dev := range devices {
		r := &rank{index: i, backend: dev, micro: map[Variant]program{}}
		if r.loader, err = data.NewLoader(corpus.Train, data.LoaderOptions{
			Seq: seq, Seed: uint64(j.Config.Seed), Rank: i, Ranks: len(devices),
		}); err != nil {
			return err
		}
		if corpus.Val != nil && corpus.Val.Len() > 0 {
			if r.sweep, err = data.NewSweep(corpus.Val, seq); err != nil {
				return err
			}
		}
		r.tokens, r.targets = make([]int32, j.Tokens.Elems()), make([]int32, j.Tokens.Elems())
		if err := r.load(j, lowered); err != nil {
			return err
		}
		ranks = append(ranks, r)
	}
	t.ranks = ranks
	return nil
}

// load loads the job's lowered programs.
func (r *rank) load(j *Job, lowered []*backend.Program) error {
	loaded, err := r.backend.Load(lowered...)
	if err != nil {
		return err
	}
	for i, p := range j.Programs() {
		x := program{loaded[i], p.Name()}
		switch p {
		case j.Update:
			r.update = x
		case j.Calibrate:
			r.calibrate = x
		case j.Prepare:
			r.prepare = x
		case j.Eval:
			r.eval = x
		case j.Health:
			r.health = x
		default:
			for v, q := range j.Micro {
				if p == q {
					r.micro[v] = x
				}
			}
		}
	}
	return r.prepareReports(j)
}

// each runs f on all ranks concurrently; the first error cancels the context of the others.
func (t *Trainer) each(ctx context.Context, f func(context.Context, *rank) error) error {
	if len(t.ranks) == 1 {
		return f(ctx, t.ranks[0])
	}
	g, shared := errgroup.WithContext(ctx)
	for _, r := range t.ranks {
		g.Go(func() error { return f(shared, r) })
	}
	return g.Wait()
}

// TokensPerStep returns the number of training tokens of one step, over all ranks.
func (j *Job) TokensPerStep() int64 {
	c := j.Config
	return int64(c.Train.MicroBatch) * int64(c.Data.Seq) * int64(c.Train.Accumulate) * int64(c.Train.Ranks)
}

// control returns step.control for a micro-batch of a step; both count from 0.
func (t *Trainer) control(r *rank, step, micro int) backend.Control {
	perMicro := uint64(len(r.tokens))
	return backend.Control{
		Seed: uint64(t.Config.Seed), Step: uint64(step),
		Token:     (uint64(micro)*uint64(len(t.ranks)) + uint64(r.index)) * perMicro,
		LR:        float32(t.Config.Optimizer.LRAt(step, t.Config.Train.Steps)),
		InvTokens: float32(1 / float64(t.TokensPerStep())),
		Rank:      int32(r.index),
	}
}

// microBatches writes the micro-batches of a step, from the loader's position on, and
// calls run for each.
func (t *Trainer) microBatches(r *rank, step int, run func(program) error) error {
	n := t.Config.Train.Accumulate
	for i := range n {
		if err := r.loader.Next(r.tokens, r.targets); err != nil {
			return err
		}
		if err := t.feed(r, t.control(r, step, i)); err != nil {
			return err
		}
		if err := run(r.micro[Variant{i == 0, i == n-1}]); err != nil {
			return err
		}
	}
	return nil
}

// seek sets the position in the data, which all ranks share.
func (t *Trainer) seek(p data.Position) error {
	for _, r := range t.ranks {
		if err := r.loader.Restore(p); err != nil {
			return err
		}
	}
	return nil
}

// saveHistories saves the packed scale state for a repeated calibration.
func (t *Trainer) saveHistories() error {
	t.histories = [][]byte{}
	for _, h := range t.Model.Packed() {
		raw, err := t.read(h)
		if err != nil {
			return err
		}
		t.histories = append(t.histories, raw)
	}
	return nil
}

// calibrate fills the empty histories from the next micro-batch, which the step then
// trains on. A cold start has no calibration.
func (t *Trainer) calibrate(ctx context.Context) error {
	if t.Model.Scales.Empty() || t.Recipe.ColdStart {
		return nil
	}
	// A calibration that was interrupted may have pushed its row already.
	for i, h := range t.Model.Packed() {
		if err := t.write(h, t.histories[i]); err != nil {
			return err
		}
	}
	return t.each(ctx, func(ctx context.Context, r *rank) error {
		from := r.loader.Position()
		if err := r.loader.Next(r.tokens, r.targets); err != nil {
			return err
		}
		if err := r.loader.Restore(from); err != nil {
			return err
		}
		if err := t.feed(r, t.control(r, t.step, 0)); err != nil {
			return err
		}
		if err := t.run(ctx, r, r.calibrate); err != nil {
			return err
		}
		return t.run(ctx, r, r.prepare)
	})
}

// feed writes a micro-batch and its control words to the device.
func (t *Trainer) feed(r *rank, c backend.Control) error {
	if err := r.writeInts(t.Tokens, r.tokens); err != nil {
		return err
	}
	if err := r.writeInts(t.Targets, r.targets); err != nil {
		return err
	}
	r.bytes = c.AppendTo(r.bytes[:0])
	return r.backend.Write(t.Control, r.bytes)
}

func (r *rank) writeInts(to *backend.Tensor, x []int32) error {
	r.bytes = r.bytes[:0]
	for _, v := range x {
		r.bytes = binary.LittleEndian.AppendUint32(r.bytes, uint32(v))
	}
	return r.backend.Write(to, r.bytes)
}

// Evaluate returns the mean cross-entropy over the validation stream, in nats per
// token, with frozen scales. Batches go to the ranks round-robin; their losses are
// summed in order.
func (t *Trainer) Evaluate(ctx context.Context) (float64, error) {
	if err := t.stateError(); err != nil {
		return 0, err
	}
	sweep := t.ranks[0].sweep
	if sweep == nil {
		return 0, errors.New("there is no validation data: set data.val_bytes above 0")
	}
	rows := t.Config.Train.MicroBatch
	batches := (sweep.Rows() + int64(rows) - 1) / int64(rows)
	sums := make([]float64, batches)
	err := t.each(ctx, func(ctx context.Context, r *rank) error {
		for b := int64(r.index); b < batches; b += int64(len(t.ranks)) {
			if _, err := r.sweep.Batch(b*int64(rows), r.tokens, r.targets); err != nil {
				return err
			}
			if err := t.feed(r, backend.Control{}); err != nil {
				return err
			}
			if err := t.run(ctx, r, r.eval); err != nil {
				return err
			}
			if err := r.backend.Read(t.EvalLoss, r.words[:4]); err != nil {
				return err
			}
			sums[b] = float(r.words[:])
		}
		return nil
	})
	total := 0.0
	for _, s := range sums {
		total += s
	}
	return total / float64(sweep.Targets()), err
}

// StepsDone returns the number of completed steps.
func (t *Trainer) StepsDone() int { return t.step }
