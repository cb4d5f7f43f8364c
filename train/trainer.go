package train

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"

	"octet/backend"
	"octet/backend/world"
	"octet/data"
)

// Trainer runs a job on the device of one rank: it writes batches, runs the programs of a step
// and reads back the results. Use it from one goroutine.
//
// Ranks that train together have a Trainer each, of the same job, and call the same methods in
// the same order: Init, InitFrom, Restore, Rewind, Next, NextAhead, Evaluate, Health and
// Snapshot. If a method fails on one rank, the program must end the group ([world.Group.Fail],
// [world.Each]), because the other ranks wait for that rank.
type Trainer struct {
	*Job // of the current recipe

	// Reopen closes the trainer's device and opens the same one again, since a
	// backend can be bound only once. Changes of recipe need it: those of
	// precision.schedule, and Init and Restore across one. A run without a schedule
	// does not.
	Reopen func() (backend.Backend, error)

	// Execute, if set, runs the programs in place of x.Run(ctx), for example
	// to observe nodes or measure their times. It may be set between two steps and does
	// not affect a step in flight.
	Execute func(ctx context.Context, program string, x backend.Executable) error

	// Converted reports whether the last Restore rounded moments from another E4M3
	// variant, which another device had written.
	Converted bool

	corpus *data.Corpus
	group  *world.Group
	device *device // nil if Reopen failed

	step       int // completed steps, skipped ones included
	flights    flights
	skipped    int // consecutive skipped steps
	rewinds    int // see Rewind
	spikes     spikes
	calibrated bool       // the calibration of the current recipe is done
	histories  [][]byte   // packed scale state before the calibration; nil after it, and without weights
	hostState  *hostState // host copy of the state during a change of recipe, else nil
	outliers   outlierWatch
	reference  reference // of train.objective = "dpo"
}

// device is an open device with a job's programs, and the rank's share of the data.
type device struct {
	backend.Backend
	loader batches
	pairs  *pairs      // nil unless train.objective = "dpo"
	sweep  *data.Sweep // nil without validation data

	micro                            map[Variant]program
	update, calibrate, prepare, eval program
	health                           program          // zero without train.health_every
	reports                          [2]backend.Fetch // result copies, alternating between steps; nil if Run is synchronous

	tokens, targets []int32
	starts          []int32 // nil unless data.attention = "document"
	bytes           []byte
	reported        []*backend.Tensor // the results of a step
	words           []byte            // their bytes as read from the device
}

// batches is what a rank trains on: a [data.Loader], or [data.Pairs].
type batches interface {
	Next(inputs, targets []int32) error
	Counted(rows int64) (int64, error)
	Position() data.Position
	StorePosition(*data.Position)
	Restore(data.Position) error
}

// program is a loaded program.
type program struct {
	backend.Executable
	name string
}

// run runs a program, through Execute if that is set.
func (t *Trainer) run(ctx context.Context, p program) error {
	if t.Execute != nil {
		return t.Execute(ctx, p.name, p.Executable)
	}
	return p.Run(ctx)
}

// MaxZeroStage is the highest stage of ZeRO, see train.zero_stage.
const MaxZeroStage = 3

// MaxRanks is the largest train.ranks of a run. Programs of more ranks can be recorded, for a plan.
const MaxRanks = 1024

// CheckRanks returns an error if a run cannot have the configuration's number of ranks.
func (c Config) CheckRanks() error {
	if c.Train.Ranks > MaxRanks {
		return fmt.Errorf("train.ranks = %d is more than a run can have; use %d, or predict a larger cluster by octet plan --cluster", c.Train.Ranks, MaxRanks)
	}
	return nil
}

// NewTrainer binds a job to the device of a group's rank, and loads its programs. The group is
// nil for a run with one rank. Call Init, InitFrom or Restore next to set the weights.
func NewTrainer(j *Job, corpus *data.Corpus, b backend.Backend, g *world.Group) (*Trainer, error) {
	if err := j.Config.CheckRanks(); err != nil {
		return nil, err
	}
	if g.Size() != j.Config.Train.Ranks {
		return nil, fmt.Errorf("train.ranks = %d, but the group has %d ranks", j.Config.Train.Ranks, g.Size())
	}
	t := &Trainer{Job: j, corpus: corpus, group: g}
	return t, t.open(b)
}

// open binds the job to a device and loads its programs there.
func (t *Trainer) open(b backend.Backend) error {
	j, seq := t.Job, t.Config.Data.Seq
	if err := t.Config.CheckCorpus(t.corpus); err != nil {
		return err
	}
	lowered, err := backend.Lower(b.Spec(), j.Programs()...)
	if err != nil {
		return err
	}
	d := &device{Backend: b, micro: map[Variant]program{}}
	o := data.LoaderOptions{
		Seq: seq, Seed: uint64(j.Config.Seed), Rank: t.place().data, Ranks: j.Config.dataRanks(),
		Packing: j.Config.Data.Packing == PackDocuments,
	}
	if d.pairs, err = t.openPairs(o); err != nil {
		return err
	}
	if d.pairs != nil {
		d.loader = d.pairs.train
	} else if d.loader, err = t.corpus.Loader(o); err != nil {
		return err
	}
	if val := t.corpus.Val; d.pairs == nil && val != nil && val.Len() > 0 {
		if d.sweep, err = data.NewSweep(val, seq); err != nil {
			return err
		}
	}
	d.tokens, d.targets = make([]int32, j.Tokens.Elems()), make([]int32, j.Tokens.Elems())
	if j.Start != nil {
		d.starts = make([]int32, j.Start.Elems())
	}
	if err := d.load(j, lowered); err != nil {
		return err
	}
	t.device = d
	return nil
}

// load loads the job's lowered programs.
func (d *device) load(j *Job, lowered []*backend.Program) error {
	loaded, err := d.Load(lowered...)
	if err != nil {
		return err
	}
	for i, p := range j.Programs() {
		x := program{loaded[i], p.Name()}
		switch p {
		case j.Update:
			d.update = x
		case j.Calibrate:
			d.calibrate = x
		case j.Prepare:
			d.prepare = x
		case j.Eval:
			d.eval = x
		case j.Health:
			d.health = x
		default:
			for v, q := range j.Micro {
				if p == q {
					d.micro[v] = x
				}
			}
		}
	}
	return d.prepareReports(j)
}

// TokensPerStep returns the number of training tokens of one step, over all ranks.
func (j *Job) TokensPerStep() int64 { return j.Config.stepTokens() }

func (c Config) stepTokens() int64 {
	return int64(c.Train.MicroBatch) * int64(c.Data.Seq) * int64(c.Train.Accumulate) * int64(c.dataRanks())
}

// counted returns the number of targets of the next step that count in its loss, over all
// ranks.
func (t *Trainer) counted() (int64, error) {
	return t.device.loader.Counted(t.TokensPerStep() / int64(t.Config.Data.Seq))
}

// control returns step.control for a micro-batch of a step; both count from 0. Without counted
// targets all gradients are multiplied by 0.
func (t *Trainer) control(step, micro int, counted int64) backend.Control {
	at, ranks, perMicro := t.place(), t.Config.dataRanks(), uint64(len(t.device.tokens))
	inverse := 0.0
	if counted > 0 {
		inverse = 1 / float64(counted)
	}
	return backend.Control{
		Seed: uint64(t.Config.Seed), Step: uint64(step),
		Token:     (uint64(micro)*uint64(ranks)+uint64(at.data))*perMicro + uint64(at.tensor)*tensorStream,
		LR:        float32(t.Config.Optimizer.LRAt(step, t.Config.Train.Steps)),
		InvTokens: float32(inverse),
		Rank:      int32(t.group.Rank()),
	}
}

// tensorStream lies between the token indexes of ranks that share layers, so that they round
// different elements with different random bits.
const tensorStream = 1 << 40

// microBatches writes the micro-batches of a step, from the loader's position on, and
// calls run for each. counted is that of the step.
func (t *Trainer) microBatches(ctx context.Context, step int, counted int64, run func(program) error) error {
	n, d, feed := t.Config.Train.Accumulate, t.device, t.feed
	if d.pairs != nil {
		d.pairs.sums = pairSums{}
		feed = func(c backend.Control) error { return t.feedPairs(ctx, c) }
	}
	for i := range n {
		if err := d.loader.Next(d.tokens, d.targets); err != nil {
			return err
		}
		if err := feed(t.control(step, i, counted)); err != nil {
			return err
		}
		if err := run(d.micro[Variant{i == 0, i == n-1}]); err != nil {
			return err
		}
	}
	return nil
}

// saveHistories saves the packed scale state for a repeated calibration.
func (t *Trainer) saveHistories() error {
	t.histories = [][]byte{}
	for _, h := range t.Model.Packed() {
		raw, err := t.readLocal(h)
		if err != nil {
			return err
		}
		t.histories = append(t.histories, raw)
	}
	return nil
}

// ensureCalibrated runs the calibration of the current recipe, unless it is done.
func (t *Trainer) ensureCalibrated(ctx context.Context) error {
	if t.calibrated {
		return nil
	}
	if err := t.calibrate(ctx); err != nil {
		return err
	}
	t.calibrated, t.histories = true, nil
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
		if err := t.device.Write(h, t.histories[i]); err != nil {
			return err
		}
	}
	d := t.device
	from := d.loader.Position()
	counted, err := t.counted()
	if err != nil {
		return err
	}
	if err := d.loader.Next(d.tokens, d.targets); err != nil {
		return err
	}
	if err := d.loader.Restore(from); err != nil {
		return err
	}
	if err := t.feed(t.control(t.step, 0, counted)); err != nil {
		return err
	}
	if d.pairs != nil { // z is 0 under the initial weights, and not known after a change of recipe
		if err := t.writeWeights(func(int) float64 { return 0 }); err != nil {
			return err
		}
	}
	if err := t.run(ctx, d.calibrate); err != nil {
		return err
	}
	return t.run(ctx, d.prepare)
}

// feed writes a micro-batch and its control words to the device.
func (t *Trainer) feed(c backend.Control) error {
	d := t.device
	if err := d.writeInts(t.Tokens, d.tokens); err != nil {
		return err
	}
	if err := d.writeInts(t.Targets, d.targets); err != nil {
		return err
	}
	if t.Start != nil {
		data.Starts(d.starts, d.tokens, t.Config.Data.Seq, t.corpus.EndOfText)
		if err := d.writeInts(t.Start, d.starts); err != nil {
			return err
		}
	}
	return t.writeControl(c)
}

func (t *Trainer) writeControl(c backend.Control) error {
	d := t.device
	d.bytes = c.AppendTo(d.bytes[:0])
	return d.Write(t.Control, d.bytes)
}

func (d *device) writeInts(to *backend.Tensor, x []int32) error {
	d.bytes = d.bytes[:0]
	for _, v := range x {
		d.bytes = binary.LittleEndian.AppendUint32(d.bytes, uint32(v))
	}
	return d.Write(to, d.bytes)
}

// Evaluate returns the mean cross-entropy over the validation stream, in nats per
// token, with frozen scales. Batches go to the ranks round-robin; their losses are
// summed in order. With train.objective = "dpo" it returns the loss of EvaluatePairs.
func (t *Trainer) Evaluate(ctx context.Context) (float64, error) {
	if err := t.stateError(); err != nil {
		return 0, err
	}
	d, rows := t.device, int64(t.Config.Train.MicroBatch)
	if d.pairs != nil {
		loss, _, err := t.EvaluatePairs(ctx)
		return loss, err
	}
	if d.sweep == nil {
		return 0, errNoValidation
	}
	ranks, batches := int64(t.Config.dataRanks()), (d.sweep.Rows()+rows-1)/rows
	var mine []byte // sums of the batches of this rank, FP32
	for b := int64(t.place().data); b < t.rounds(batches)*ranks; b += ranks {
		own := b < batches // else this rank only gathers weights with the others, and its result is unused
		if own {
			if _, err := d.sweep.Batch(b*rows, d.tokens, d.targets); err != nil {
				return 0, err
			}
		}
		if err := t.feed(backend.Control{Rank: int32(t.group.Rank())}); err != nil {
			return 0, err
		}
		if err := t.run(ctx, d.eval); err != nil {
			return 0, err
		}
		if err := d.Read(t.EvalLoss, d.words[:4]); err != nil {
			return 0, err
		}
		if own {
			mine = append(mine, d.words[:4]...)
		}
	}
	sums, err := t.group.Exchange(ctx, "the evaluation", mine)
	if err != nil {
		return 0, err
	}
	total := 0.0
	for b := range batches {
		total += float(sums[t.Config.firstOf(int(b%ranks))][b/ranks*4:])
	}
	return total / float64(d.sweep.Targets()), nil
}

// evaluatesTogether reports whether a rank without a batch takes part in an evaluation: ranks gather
// weights at stage 3 of ZeRO, and over MPI all groups that share layers run their collectives together.
func (t *Trainer) evaluatesTogether() bool {
	return t.Config.Train.ZeroStage >= 3 || t.Config.tensor() > 1
}

// rounds returns how often this rank evaluates when the ranks divide so many batches.
func (t *Trainer) rounds(batches int64) int64 {
	ranks := int64(t.Config.dataRanks())
	if t.evaluatesTogether() {
		return (batches + ranks - 1) / ranks
	}
	return (batches + ranks - 1 - int64(t.place().data)) / ranks
}

var errNoValidation = errors.New("there is no validation data: set data.val_bytes above 0")

// StepsDone returns the number of completed steps.
func (t *Trainer) StepsDone() int { return t.step }
