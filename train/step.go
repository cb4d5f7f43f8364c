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

// This file is how a step is given to the devices and how its result comes back.

// StepResult is what one optimizer step reports.
type StepResult struct {
	Step     int     // 1 for the first
	Loss     float64 // nats per token, mean over the step's valid tokens
	LR       float64
	GradNorm float64 // before clipping
	Tokens   int64   // trained on so far
	Skipped  bool    // the update did not happen: something was not finite
	Spike    Spike   // of the loss, if this step made it one
	Elapsed  time.Duration
}

// ErrNonFinite is wrapped when too many steps in a row were skipped.
var ErrNonFinite = errors.New("training is not finite")

// Next runs one step: all micro-batches and the update. A step whose gradients
// or amaxes are not finite changes nothing and is reported as skipped; after
// Config.Train.OnNonfinite of them in a row the error names the op where it
// began.
//
// A step that cannot be run, or is cancelled, leaves everything as it was, and the
// next call runs the same one; with several ranks that takes devices that are
// opened anew: ranks that lost one of them in a collective do not meet again. A
// step that was run counts even where its result cannot be read back: its update
// has happened.
//
// Where precision.schedule names another recipe for the step, Next changes to it
// first.
func (t *Trainer) Next(ctx context.Context) (StepResult, error) {
	if err := t.ensureUnderWay(ctx); err != nil {
		return StepResult{}, err
	}
	return t.collect(ctx)
}

// NextAhead is Next for who wants the step after this one too, whatever this
// one's result is: that one is given to the devices before this one's result is
// waited for, so that they go on while the host is busy with the result. All
// results are those of Next.
//
// Afterwards a step is under way (UnderWay), whose result the next call of Next or
// NextAhead returns, or why it could not be given to the devices; until then there
// is no state to evaluate or to save. NextAhead is Next where the devices do not
// work on when Run has returned, where the next step has another recipe, and where
// one more skipped step would end the run.
func (t *Trainer) NextAhead(ctx context.Context) (StepResult, error) {
	if err := t.ensureUnderWay(ctx); err != nil {
		return StepResult{}, err
	}
	if t.mayGoAhead() {
		t.flights.failure = t.issue(ctx)
	}
	res, err := t.collect(ctx)
	if failure := t.flights.failure; err != nil && failure != nil {
		// What has befallen the devices came up there first.
		err, t.flights.failure = failure, nil
	}
	return res, err
}

// UnderWay reports whether the devices have a step whose result is not known yet.
func (t *Trainer) UnderWay() bool { return t.flights.n > 0 }

// flights are the steps that were given to the devices and whose results are not
// known yet.
type flights struct {
	n       int
	list    [2]flight // by step modulo 2
	failure error     // why the step after them could not be given, if that was tried; told when it is that step's turn
	landed  time.Time // when the last result was there
}

type flight struct {
	start time.Time
	from  data.Position // of its first batch
}

// oldest is the step that follows the completed ones.
func (t *Trainer) oldest() *flight { return &t.flights.list[t.step%2] }

// forgetFlights is for who replaces all that the steps under way compute. It waits
// for them, so that devices can be closed; what they say is of no interest. Their
// batches come again.
func (t *Trainer) forgetFlights() error {
	var err error
	if t.UnderWay() {
		err = t.moveTo(t.oldest().from)
	}
	for i := range t.flights.n {
		r := t.ranks[0]
		_ = r.reports[(t.step+i)%2].End(r.words[:])
	}
	t.flights = flights{}
	return err
}

// ensureUnderWay gives the next step to the devices, unless they have it.
func (t *Trainer) ensureUnderWay(ctx context.Context) error {
	if err := t.flights.failure; err != nil {
		t.flights.failure = nil
		return err
	}
	if t.UnderWay() {
		return nil
	}
	return t.issue(ctx)
}

// mayGoAhead reports whether another step can be given to the devices behind the
// one that is under way, whatever comes of that, and whether they gain by it.
func (t *Trainer) mayGoAhead() bool {
	limit := t.Config.Train.OnNonfinite
	return t.flights.n == 1 && t.ranks[0].reports[0] != nil &&
		PhaseAt(t.Phases, t.step+1) == t.Phase &&
		(limit == 0 || t.skipped+1 < limit)
}

// issue gives the step after those under way to the devices.
func (t *Trainer) issue(ctx context.Context) error {
	start := time.Now()
	if !t.hasWeights() {
		return errNoWeights
	}
	if err := t.followSchedule(ctx); err != nil {
		return err
	}
	if !t.calibrated {
		if err := t.calibrate(ctx); err != nil {
			return err
		}
		t.calibrated, t.histories = true, nil
	}
	from := t.ranks[0].loader.Position()
	if err := t.each(ctx, t.boundRunStep); err != nil {
		return errors.Join(err, t.moveTo(from))
	}
	t.carried = nil
	step := t.step + t.flights.n
	if report := t.ranks[0].reports[step%2]; report != nil {
		report.Begin()
	}
	t.flights.list[step%2] = flight{start, from}
	t.flights.n++
	return nil
}

func (t *Trainer) runStep(ctx context.Context, r *rank) error {
	err := t.microBatches(r, t.step+t.flights.n, func(p program) error { return t.run(ctx, r, p) })
	if err != nil {
		return err
	}
	if t.Execute != nil && len(t.ranks) == 1 { // it may look at ctx between two nodes, and half an update is none
		if err := ctx.Err(); err != nil {
			return err
		}
		ctx = context.WithoutCancel(ctx)
	}
	return t.run(ctx, r, r.update)
}

// collect waits for the result of the oldest step under way.
func (t *Trainer) collect(ctx context.Context) (StepResult, error) {
	f := *t.oldest()
	res := StepResult{LR: t.Config.Optimizer.LRAt(t.step, t.Config.Train.Steps)}
	report := t.ranks[0].reports[t.step%2]
	t.step++ // the update has happened, whether it can be reported or not
	t.flights.n--
	if err := t.readReport(report, &res); err != nil {
		return StepResult{}, err
	}
	if t.Config.Train.OnSpike != "off" {
		res.Spike = t.spikes.observe(t.step, res.Loss, t.Config.Optimizer.WarmupSteps(t.Config.Train.Steps))
	}
	res.Step, res.Tokens = t.step, int64(t.step)*t.TokensPerStep()
	// The time of a step that was given ahead begins where the one before it ends.
	if t.flights.landed.After(f.start) {
		f.start = t.flights.landed
	}
	t.flights.landed = time.Now()
	res.Elapsed = t.flights.landed.Sub(f.start)
	if !res.Skipped {
		t.skipped = 0
		return res, nil
	}
	t.skipped++
	if limit := t.Config.Train.OnNonfinite; limit > 0 && t.skipped >= limit {
		return res, t.blame(ctx, f.from)
	}
	return res, nil
}

// A step reports a few words, the same on all ranks; the first is asked.
const reportWords = 3

func (j *Job) report() [reportWords]*backend.Tensor {
	return [...]*backend.Tensor{j.Loss, j.GradNorm, j.Skip}
}

// prepareReports is for devices that work on when Run has returned.
func (r *rank) prepareReports(j *Job) error {
	f, ok := r.backend.(backend.Fetcher)
	if !ok || r.index > 0 {
		return nil
	}
	words := j.report()
	for i := range r.reports {
		var err error
		if r.reports[i], err = f.Fetch(words[:]...); err != nil {
			return err
		}
	}
	return nil
}

// readReport waits for what a step reports.
func (t *Trainer) readReport(report backend.Fetch, res *StepResult) error {
	r := t.ranks[0]
	if report != nil {
		if err := report.End(r.words[:]); err != nil {
			return err
		}
	} else {
		for i, x := range t.report() {
			if err := r.backend.Read(x, r.words[4*i:][:4]); err != nil {
				return err
			}
		}
	}
	res.Loss = float(r.words[0:]) / float64(t.TokensPerStep())
	res.GradNorm = float(r.words[4:])
	res.Skipped = binary.LittleEndian.Uint32(r.words[8:]) != 0
	return nil
}

// float is the FP32 number that raw begins with.
func float(raw []byte) float64 {
	return float64(math.Float32frombits(binary.LittleEndian.Uint32(raw)))
}

// blame runs the step that began at from again, op by op. Its micro-batches change
// no parameter and no state, so they fail as they did. The first one comes first: a
// gradient that it spoiled would make the ops of a later one look guilty, which only
// add to it. Where all are finite the update is to blame, which looks at their norm
// and at the maxima of the weights before it changes anything. The ranks run
// together, since they may meet in a collective.
func (t *Trainer) blame(ctx context.Context, from data.Position) error {
	after := t.ranks[0].loader.Position()
	err := t.moveTo(from)
	if err == nil {
		err = t.each(ctx, func(ctx context.Context, r *rank) error {
			hunt := func(p program) error {
				found, err := backend.FindNonFinite(ctx, p)
				if found != nil {
					return found
				}
				return err
			}
			if err := t.microBatches(r, t.step-1, hunt); err != nil {
				return err
			}
			return hunt(r.update)
		})
	}
	if err == nil {
		t.forgetWeights() // the update has happened, behind a step that counts as skipped
		err = errors.New("run again, all that the last of them computes is finite: the fault does not repeat itself, which speaks for the machine's memory or its device")
	}
	err = fmt.Errorf("%w: %d steps in a row were skipped: %w", ErrNonFinite, t.skipped, err)
	return errors.Join(err, t.moveTo(after))
}
