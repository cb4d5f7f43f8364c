package run

import (
	"context"
	"errors"
	"sync"
	"time"

	"octet/backend"
	"octet/train"
)

// Progress is what Train reports after every step.
type Progress struct {
	train.StepResult
	Steps       int               // of the whole run
	Evaluated   bool              // this step evaluated
	ValLoss     float64           // nats per token, if it did; with train.objective = "dpo" as Loss
	ValPairs    train.Preference  // of the validation pairs, if it did
	Health      train.Health      // of this step, if it was measured
	Checkpoint  string            // path of a checkpoint finished since the last step, or of the one that the run rewound to
	SaveError   error             // why a checkpoint could not be written; the run continues, as checkpoint.on_error says
	SaveWait    time.Duration     // the wait of the step's checkpoint for the one before it
	SaveCopy    time.Duration     // the time to copy the state; writing it overlaps the next steps
	Requested   bool              // Options.Save requested a checkpoint of this step
	Recipe      string            // the new recipe, if this step was the first under it
	Rewound     bool              // the step ended in a spike, and the run rewound to Checkpoint
	ETA         *time.Duration    // see Run.eta; nil after the first step
	Profile     *Profile          // of the profiled steps, if this is the last of them
	MFU         *float64          // share of the devices' peak over an interval of steps, if it ends with this one and is known
	Stragglers  []Straggler       // the ranks that became slow with this step
	Devices     []backend.Reading // of each device, about a second old; nil if none has sensors
	SensorError error             // why a device's sensors cannot be read; reported once
}

// Train runs the remaining steps and reports each. When ctx is cancelled, Train finishes
// the steps that the devices were given, one or two, writes a checkpoint and returns ctx's
// error, or an [Interrupt] on the other ranks. If the records of a step cannot be written, Train also writes a checkpoint. Any
// error other than ctx's names the last checkpoint. All writing has ended when Train
// returns.
//
// Ranks above 0 of a group report nothing. If a rank fails, all ranks return an error.
func (r *Run) Train(ctx context.Context, report func(Progress)) error {
	var others sync.WaitGroup
	for _, o := range r.others {
		others.Go(func() { _ = o.trainRank(ctx, func(Progress) {}) }) // rank 0 returns the error of all
	}
	err := r.trainRank(ctx, report)
	others.Wait()
	if isInterruption(ctx, err) {
		r.exporter.End(nil)
	} else {
		r.exporter.End(err)
	}
	return err
}

// trainRank is Train of one rank. If it fails, it ends the group.
func (r *Run) trainRank(ctx context.Context, report func(Progress)) error {
	returned := make(chan struct{})
	defer close(returned)
	go r.watchGroup(returned)
	if r.rank() > 0 {
		report = func(Progress) {}
	}
	err := r.train(ctx, report)
	if err != nil && !isInterruption(ctx, err) {
		r.fail(ctx, err)
	}
	return err
}

// isInterruption reports whether Train ended early because a rank was interrupted.
func isInterruption(ctx context.Context, err error) bool {
	_, other := errors.AsType[Interrupt](err)
	return other || ctx.Err() != nil && errors.Is(err, ctx.Err())
}

func (r *Run) train(ctx context.Context, report func(Progress)) error {
	r.telemetry.begin()
	defer r.telemetry.end()
	watch := startWatch()
	defer watch.stop()
	var first time.Duration // end of the first step
	var err error
	if r.agreed, err = r.agree(ctx, &Progress{StepResult: train.StepResult{Step: r.Trainer.StepsDone()}}, nil); err != nil {
		return r.withLastCheckpoint(err)
	}
	for r.Trainer.StepsDone() < r.Config.Train.Steps {
		p, interrupted, err := r.step(ctx)
		if err != nil {
			w, _ := r.saver.result(true)
			err = r.cause(err, w.err)
			r.records.log.Error("stopped", "step", r.Trainer.StepsDone(), "error", err.Error())
			return r.withLastCheckpoint(err)
		}
		now := watch.at(time.Now())
		if r.executed == 1 {
			first = now
		}
		p.ETA = r.eta(now-first, r.executed-1)
		report(p)
		if interrupted {
			r.records.log.Info("interrupted", "step", p.Step)
			if err := ctx.Err(); err != nil {
				return err
			}
			return Interrupt{r.agreed.signal}
		}
	}
	return nil
}

// eta returns how long the rest of the run takes at the pace so far, including evaluations
// and checkpoints. took is the time of steps steps of this process, without the first,
// which also compiles and warms up.
func (r *Run) eta(took time.Duration, steps int) *time.Duration {
	left := r.Config.Train.Steps - r.Trainer.StepsDone()
	if steps == 0 && left > 0 {
		return nil
	}
	return new(seconds(took.Seconds() / float64(max(1, steps)) * float64(left)))
}

// seconds converts to a Duration. A value that a Duration cannot hold (292 years) becomes
// half of the maximum.
func seconds(s float64) time.Duration {
	return time.Duration(min(s*float64(time.Second), 1<<62))
}

// step runs one step with its evaluation, records and checkpoint. interrupted says that ctx
// was cancelled in time for this step to write a checkpoint.
func (r *Run) step(ctx context.Context) (p Progress, interrupted bool, err error) {
	c := r.Config
	steady := context.WithoutCancel(ctx) // a step is never interrupted
	p.Steps = c.Train.Steps
	if err := r.collectSave(&p, false); err != nil {
		return p, false, err
	}
	phase, due, measure := r.Trainer.Phase, r.due(r.Trainer.StepsDone()+1), r.agreed.measure
	if !r.Trainer.UnderWay() {
		r.pace.begin(r.group.WaitTime())
	}
	p.StepResult, err = r.next(steady, due == dueTasks{} && r.agreed == agreement{})
	r.pace.end(p.Elapsed, r.group.WaitTime())
	if p.Step > 0 { // the step is done, even if it is the last of too many skipped ones
		r.executed++
		if err != nil {
			err = errors.Join(err, r.record(p))
		}
	}
	if err != nil {
		return p, false, err
	}
	r.utilization.add(float64(r.Trainer.TokensPerStep())*r.Trainer.FLOPsPerToken(), p.Elapsed.Seconds())
	if measure && !r.Trainer.UnderWay() {
		p.MFU = r.utilization.end()
		if r.utilization.tooFast() {
			r.records.log.Warn("mfu left out: the steps ran faster than the peak measured before and after them, so another load slowed the measurement", "step", p.Step)
		}
	}
	p.Devices = r.devices()
	if p.SensorError = r.telemetry.failure(); p.SensorError != nil {
		r.records.log.Warn("no telemetry", "step", p.Step, "reason", p.SensorError.Error())
	}
	if r.Trainer.Phase != phase {
		p.Recipe = r.Trainer.Recipe.Name
		r.records.log.Info("recipe", "step", p.Step, "name", p.Recipe)
		r.logNotes()
	}
	if p.Spike.Begin > 0 {
		if err := r.handleSpike(steady, &p); err != nil || p.Rewound {
			return p, false, err
		}
	}
	if due.health {
		if p.Health, err = r.Trainer.Health(steady); err != nil {
			return p, false, err
		}
		for _, alarm := range p.Health.Alarms {
			r.records.log.Warn(alarm, "step", p.Step)
		}
	}
	if p.Evaluated = due.evaluation; due.evaluation {
		if c.Train.Objective == train.ObjectiveDPO {
			p.ValLoss, p.ValPairs, err = r.Trainer.EvaluatePairs(steady)
		} else {
			p.ValLoss, err = r.Trainer.Evaluate(steady)
		}
		if err != nil {
			return p, false, err
		}
	}
	if due.checkpoint {
		err = r.copyState(&p)
	}
	if err == nil {
		err = r.endStep(ctx, &p)
	}
	interrupted = r.agreed.stop && !r.Trainer.UnderWay()
	if err != nil {
		return p, interrupted, err
	}
	p.Requested = r.agreed.save && !r.Trainer.UnderWay()
	if p.Requested && len(r.requests) > 0 {
		<-r.requests // a later request gives another checkpoint
	}
	save := due.checkpoint || interrupted || p.Requested
	if save && !due.checkpoint {
		err = r.copyState(&p)
	}
	if err == nil {
		p.Profile, err = r.profileAfter(p.Step, interrupted)
	}
	if err == nil && save {
		err = r.startSaving(steady, true)
	}
	if err != nil {
		return p, interrupted, err
	}
	if p.Requested {
		r.records.log.Info("checkpoint requested", "step", p.Step)
	}
	if p.Step == p.Steps || interrupted { // no later step tries again, whatever checkpoint.on_error says
		w, _ := r.saver.result(true)
		p.Checkpoint = w.path
		return p, interrupted, w.err
	}
	return p, interrupted, nil
}

// endStep writes the records of a step, agrees with the other ranks on what follows, and returns
// an error if the records of a rank could not be written.
func (r *Run) endStep(ctx context.Context, p *Progress) (err error) {
	recordErr := r.record(*p)
	if r.agreed, err = r.agree(ctx, p, recordErr); err != nil {
		return errors.Join(recordErr, err)
	}
	if !r.agreed.rescue {
		return nil
	}
	if recordErr == nil {
		recordErr = errors.New("rank 0 cannot write its records")
	}
	return errors.Join(recordErr, r.rescue(context.WithoutCancel(ctx)))
}

// dueTasks are the tasks after a step, beside its records. They use the state right after
// the step.
type dueTasks struct{ health, evaluation, checkpoint bool }

func (r *Run) due(step int) dueTasks {
	c := r.Config.Train
	last := step == c.Steps
	return dueTasks{
		health:     multiple(step, c.HealthEvery),
		evaluation: r.hasValidation() && (last || multiple(step, c.EvalEvery)),
		checkpoint: last || r.regular(step),
	}
}

// multiple reports whether step is a multiple of every; false if every is 0.
func multiple(step, every int) bool { return every > 0 && step%every == 0 }

// Tokens returns the number of tokens that Train has computed. Steps repeated after a
// rewind count again, as they do in Energy.
func (r *Run) Tokens() int64 { return int64(r.executed) * r.Trainer.TokensPerStep() }

// Energy returns the energy of the devices while Train ran, including evaluations and
// checkpoints; ok says that it is known.
func (r *Run) Energy() (e Energy, ok bool) { return r.telemetry.energy(r.rank()) }

// MFU returns the share of the devices' peak that the steps of the last whole interval
// reached, and the FLOP/s of these steps; nil if the share is unknown.
func (r *Run) MFU() (share *float64, rate float64) { return r.utilization.latest, r.utilization.rate }

func (r *Run) record(p Progress) error {
	if r.records.metrics == nil { // rank 0 writes them
		return nil
	}
	m, t, err := r.records.step(p, r.Trainer.FLOPsPerToken(), r.Trainer.TokensPerStep(), r.Memory.Total())
	r.publish(m, t)
	return err
}

func (r *Run) hasValidation() bool { return r.Corpus.Val != nil && r.Corpus.Val.Len() > 0 }
