package train

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"time"

	"octet/backend"
	"octet/data"
)

// This file issues steps to the devices and collects their results.

// StepResult holds the results of one step.
type StepResult struct {
	Step     int     // 1 for the first
	Loss     float64 // nats per token, mean over the step's targets that count, 0 if none does; with train.objective = "dpo" the mean over its pairs
	LR       float64
	GradNorm float64 // before clipping
	Tokens   int64   // number of training tokens so far
	Skipped  bool    // the update was skipped: the gradient norm or an amax was not finite
	// LossScale is the loss scale after the step, 0 without [recipe.Recipe.LossScaling]: half
	// of the step's own if it was skipped.
	LossScale  float64
	Update     UpdateResult // only with [Optimizer.Stats] or [Optimizer.ClipRMS]
	Routing    Routing      // only with [Model.Experts]
	Preference Preference   // only with train.objective = "dpo"
	Spike      Spike        // the loss spike that this step completed, if any
	Elapsed    time.Duration
}

// ErrNonFinite is wrapped by the error for too many consecutive skipped steps.
var ErrNonFinite = errors.New("training is not finite")

// Next runs one step: all micro-batches and the update. A step with a non-finite
// gradient norm or amax changes nothing and is reported as skipped. After
// Config.Train.OnNonfinite consecutive skipped steps Next returns an error that names
// the op with the first non-finite value.
//
// A step that fails or is cancelled changes nothing, and the next call repeats it.
// With several ranks, the group has ended then, and all ranks restore a checkpoint in a new
// one. A step whose result cannot be read back still
// counts, since its update has run.
//
// If precision.schedule has another recipe for the step, Next changes to it first.
func (t *Trainer) Next(ctx context.Context) (StepResult, error) {
	if err := t.ensureInFlight(ctx); err != nil {
		return StepResult{}, err
	}
	return t.collect(ctx)
}

// NextAhead is Next, except that it issues the following step before it waits for
// this step's result, so that the devices compute while the host processes the
// result. Call it only if the following step will run whatever this result is. The
// results are those of Next.
//
// Afterwards a step is in flight (UnderWay). The next call of Next or NextAhead
// returns its result, or the error with which issuing it failed; until then the state
// cannot be evaluated or saved. NextAhead equals Next if Run is synchronous on the
// devices, if the following step has another recipe, and if one more skipped step
// would end the run.
func (t *Trainer) NextAhead(ctx context.Context) (StepResult, error) {
	if err := t.ensureInFlight(ctx); err != nil {
		return StepResult{}, err
	}
	if t.canIssueNext() {
		t.flights.failure = t.issue(ctx)
	}
	res, err := t.collect(ctx)
	if failure := t.flights.failure; err != nil && failure != nil {
		// Prefer the error of the later step: a device failure appeared there first.
		err, t.flights.failure = failure, nil
	}
	return res, err
}

// UnderWay reports whether a step is in flight: issued, with its result not yet collected.
func (t *Trainer) UnderWay() bool { return t.flights.n > 0 }

// flights holds the steps in flight: issued to the devices, with results not yet
// collected.
type flights struct {
	n         int
	list      [2]flight // by step modulo 2
	failure   error     // error of issuing the step after them; returned when that step is due
	collected time.Time // when the last result was collected
}

type flight struct {
	start   time.Time
	from    data.Position // of its first batch
	counted int64         // targets that count in the loss
	pairs   pairSums      // of train.objective = "dpo"
}

// oldest returns the first step in flight, which follows the completed ones.
func (t *Trainer) oldest() *flight { return &t.flights.list[t.step%2] }

// dropFlights discards the steps in flight, before their state is replaced. It
// waits for them, so that devices can be closed, ignores their results, and returns
// to the position of their first batch.
func (t *Trainer) dropFlights() error {
	var err error
	if t.UnderWay() {
		err = t.device.loader.Restore(t.oldest().from)
	}
	for i := range t.flights.n {
		d := t.device
		_ = d.reports[(t.step+i)%2].End(d.words)
	}
	t.flights = flights{}
	return err
}

// ensureInFlight issues the next step, unless it is in flight.
func (t *Trainer) ensureInFlight(ctx context.Context) error {
	if err := t.flights.failure; err != nil {
		t.flights.failure = nil
		return err
	}
	if t.UnderWay() {
		return nil
	}
	return t.issue(ctx)
}

// canIssueNext reports whether another step may be issued whatever the result of the one
// in flight, and whether the devices run asynchronously.
func (t *Trainer) canIssueNext() bool {
	limit := t.Config.Train.OnNonfinite
	return t.flights.n == 1 && t.device.reports[0] != nil &&
		PhaseAt(t.Phases, t.step+1) == t.Phase &&
		(limit == 0 || t.skipped+1 < limit)
}

// issue issues the step after those in flight to the devices.
func (t *Trainer) issue(ctx context.Context) error {
	start := time.Now()
	if !t.hasWeights() {
		return errNoWeights
	}
	if err := t.followSchedule(ctx); err != nil {
		return err
	}
	if err := t.ensureCalibrated(ctx); err != nil {
		return err
	}
	if t.TokenWeights != nil && t.reference.train == nil {
		if _, err := t.MeasureReference(ctx, nil); err != nil {
			return err
		}
	}
	step := t.step + t.flights.n
	f := &t.flights.list[step%2]
	t.device.loader.StorePosition(&f.from)
	counted, err := t.counted()
	if err != nil {
		return err
	}
	t.group.AtStep(t.step + 1) // the device computes the oldest step in flight
	if err := t.runStep(ctx, step, counted); err != nil {
		return errors.Join(err, t.device.loader.Restore(f.from))
	}
	sums, err := t.reduceSums(ctx)
	if err != nil {
		return err
	}
	t.hostState = nil
	if report := t.device.reports[step%2]; report != nil {
		report.Begin()
	}
	f.start, f.counted, f.pairs = start, counted, sums
	t.flights.n++
	return nil
}

// runStep runs the programs of a step, which counts from 0.
func (t *Trainer) runStep(ctx context.Context, step int, counted int64) error {
	err := t.microBatches(ctx, step, counted, func(p program) error { return t.run(ctx, p) })
	if err != nil {
		return err
	}
	if t.Execute != nil && t.group == nil { // Execute may check ctx between nodes, but an update must not stop halfway
		if err := ctx.Err(); err != nil {
			return err
		}
		ctx = context.WithoutCancel(ctx)
	}
	return t.run(ctx, t.device.update)
}

// collect waits for the result of the oldest step in flight.
func (t *Trainer) collect(ctx context.Context) (StepResult, error) {
	f := *t.oldest()
	res := StepResult{LR: t.Config.Optimizer.LRAt(t.step, t.Config.Train.Steps)}
	report := t.device.reports[t.step%2]
	t.step++ // the update has run, even if its result cannot be read
	t.flights.n--
	if err := t.readReport(report, f.counted, &res); err != nil {
		return StepResult{}, err
	}
	if t.TokenWeights != nil {
		res.Loss, res.Preference = f.pairs.mean(t.Config.pairsPerStep())
	}
	if t.UnderWay() {
		t.group.AtStep(t.step + 1)
	}
	if t.Config.Train.OnSpike != "off" && f.counted > 0 {
		res.Spike = t.spikes.observe(t.step, res.Loss, t.Config.Optimizer.WarmupSteps(t.Config.Train.Steps))
	}
	res.Step, res.Tokens = t.step, int64(t.step)*t.TokensPerStep()
	// The time of a step issued ahead starts when the result of the previous step is collected.
	if t.flights.collected.After(f.start) {
		f.start = t.flights.collected
	}
	t.flights.collected = time.Now()
	res.Elapsed = t.flights.collected.Sub(f.start)
	if !res.Skipped {
		t.skipped = 0
		return res, nil
	}
	t.skipped++
	if limit := t.Config.Train.OnNonfinite; limit > 0 && t.skipped >= limit {
		return res, t.locateNonFinite(ctx, f.from)
	}
	return res, nil
}

// report returns the tensors that a step reports, equal on all ranks, and their bytes in all.
func (j *Job) report() (list []*backend.Tensor, bytes int) {
	list = []*backend.Tensor{j.Loss, j.GradNorm, j.Skip}
	if j.LossScale != nil {
		list = append(list, j.LossScale)
	}
	if j.Model.RouteStats != nil {
		list = append(list, j.Model.RouteStats)
	}
	if o := j.optimizer; o.MeanSquares != nil {
		list = append(list, o.MeanSquares, o.Largest, o.ZeroV)
	}
	for _, x := range list {
		bytes += int(x.Bytes())
	}
	return list, bytes
}

// prepareReports allocates the results of a step, and creates the copies of them if Run is
// asynchronous on the device.
func (d *device) prepareReports(j *Job) error {
	list, bytes := j.report()
	d.reported, d.words = list, make([]byte, bytes)
	f, ok := d.Backend.(backend.Fetcher)
	if !ok {
		return nil
	}
	for i := range d.reports {
		var err error
		if d.reports[i], err = f.Fetch(list...); err != nil {
			return err
		}
	}
	return nil
}

// readReport waits for the results of a step with this number of counted targets and stores
// them in res.
func (t *Trainer) readReport(report backend.Fetch, counted int64, res *StepResult) error {
	d := t.device
	if report != nil {
		if err := report.End(d.words); err != nil {
			return err
		}
	} else {
		at := 0
		for _, x := range d.reported {
			to := at + int(x.Bytes())
			if err := d.Read(x, d.words[at:to]); err != nil {
				return err
			}
			at = to
		}
	}
	if res.Loss = 0; counted > 0 {
		res.Loss = float(d.words[0:]) / float64(counted)
	}
	res.GradNorm = float(d.words[4:])
	res.Skipped = binary.LittleEndian.Uint32(d.words[8:]) != 0
	rest := d.words[12:]
	if t.LossScale != nil {
		res.LossScale = float(rest)
		rest = rest[4:]
	}
	if x := t.Model.RouteStats; x != nil {
		res.Routing = t.routing(rest)
		rest = rest[x.Bytes():]
	}
	res.Update = t.optimizer.updateResult(rest)
	return nil
}

// float returns the FP32 value at the start of raw.
func float(raw []byte) float64 {
	return float64(math.Float32frombits(binary.LittleEndian.Uint32(raw)))
}

// locateNonFinite repeats the step that started at from, op by op, and returns an
// error that names the first op with a non-finite result. Micro-batches change no
// parameter and no state, so the same op fails again. They run in order: ops of a
// later one accumulate to gradients and would seem to be the cause. If all are finite
// the search continues in the update, which checks the gradient norm and the maxima
// of the weights before it changes anything. All ranks run, since programs may
// contain collectives.
func (t *Trainer) locateNonFinite(ctx context.Context, from data.Position) error {
	after := t.device.loader.Position()
	err := t.device.loader.Restore(from)
	search := func(p program) error {
		found, err := backend.FindNonFinite(ctx, p)
		if found != nil {
			return found
		}
		return err
	}
	var counted int64
	if err == nil {
		counted, err = t.counted()
	}
	if err == nil {
		err = t.microBatches(ctx, t.step-1, counted, search)
	}
	if err == nil {
		err = search(t.device.update)
	}
	if err == nil {
		t.forgetWeights() // the repeated step has run its update, but it counts as skipped
		err = errors.New("the last of them was repeated and all its results are finite: the fault is not reproducible, so check the memory of the machine and of the device")
	}
	err = fmt.Errorf("%w: %d consecutive steps were skipped: %w", ErrNonFinite, t.skipped, err)
	return errors.Join(err, t.device.loader.Restore(after))
}
