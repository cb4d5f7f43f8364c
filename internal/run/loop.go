package run

import (
	"context"
	"errors"
	"time"

	"octet/backend"
	"octet/train"
)

// Progress is what Train reports after every step.
type Progress struct {
	train.StepResult
	Steps      int               // of the whole run
	Evaluated  bool              // this step evaluated
	ValLoss    float64           // nats per token, if it did
	Health     train.Health      // of this step, if it was measured
	Checkpoint string            // path of one that was finished since the step before, or that the run went back to
	Unsaved    error             // why one could not be written; the run goes on, as checkpoint.on_error asks
	SaveWait   time.Duration     // that the step's checkpoint waited for the one before
	SaveCopy   time.Duration     // that it then took to copy the state; the rest happens beside the next steps
	Requested  bool              // a checkpoint of this step is written because Options.Save asked for it
	Recipe     string            // if this step was the first under it
	Rewound    bool              // the step made a spike, and the run went back to Checkpoint
	ETA        *time.Duration    // see Run.eta; nil behind the first step
	Profile    *Profile          // of the steps up to this one, if it is the last of those that were profiled
	MFU        *float64          // share of the devices' peak that an interval of steps reached, if it ended with this one and that is known
	Devices    []backend.Reading // of each device, a second or so ago; nil where none has sensors
	Silent     error             // why a device does not tell what its sensors should; said once
}

// Train runs the remaining steps and reports each. When ctx is cancelled it
// finishes what the devices were given, a step or two, writes a checkpoint and
// returns ctx's error. Where the records of a step cannot be written, Train writes a
// checkpoint too. Any other error than ctx's says where the last checkpoint is. Nothing is
// being written any more when Train returns.
func (r *Run) Train(ctx context.Context, report func(Progress)) error {
	err := r.train(ctx, report)
	if ctx.Err() != nil && errors.Is(err, ctx.Err()) {
		r.Exporter.End(nil)
	} else {
		r.Exporter.End(err)
	}
	return err
}

func (r *Run) train(ctx context.Context, report func(Progress)) error {
	r.telemetry.begin()
	defer r.telemetry.end()
	watch := startWatch()
	defer watch.stop()
	var first time.Duration // step's end
	for r.Trainer.StepsDone() < r.Config.Train.Steps {
		p, interrupted, err := r.step(ctx)
		if err != nil {
			w, _ := r.saver.result(true)
			err = errors.Join(err, w.err)
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
			return ctx.Err()
		}
	}
	return nil
}

// eta is how long the rest takes at the pace of this process so far, evaluations and
// checkpoints included: what it took for how many steps, without the first, which
// compiles and warms up and is like no other.
func (r *Run) eta(took time.Duration, steps int) *time.Duration {
	left := r.Config.Train.Steps - r.Trainer.StepsDone()
	if steps == 0 && left > 0 {
		return nil
	}
	return new(seconds(took.Seconds() / float64(max(1, steps)) * float64(left)))
}

// step runs one step with all that belongs to it. interrupted says that ctx was
// cancelled in time for this step to write a checkpoint.
func (r *Run) step(ctx context.Context) (p Progress, interrupted bool, err error) {
	c := r.Config
	steady := context.WithoutCancel(ctx) // a step is never cut in two
	p.Steps = c.Train.Steps
	if err := r.settle(&p, false); err != nil {
		return p, false, err
	}
	phase, due := r.Trainer.Phase, r.due(r.Trainer.StepsDone()+1)
	measure := r.utilization.ends(r.Trainer.StepsDone()+1 == c.Train.Steps)
	p.StepResult, err = r.next(steady, due == chores{} && !measure && ctx.Err() == nil && len(r.requests) == 0)
	if p.Step > 0 { // it is over, be it the last of too many skipped ones
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
			r.records.log.Warn("mfu left out: the steps were faster than the peak that was measured between them, so something else slowed the machine down then", "step", p.Step)
		}
	}
	p.Devices = r.telemetry.now()
	if p.Silent = r.telemetry.failure(); p.Silent != nil {
		r.records.log.Warn("no telemetry", "step", p.Step, "reason", p.Silent.Error())
	}
	if r.Trainer.Phase != phase {
		p.Recipe = r.Trainer.Recipe.Name
		r.records.log.Info("recipe", "step", p.Step, "name", p.Recipe)
		r.logNotes()
	}
	if p.Spike.Begin > 0 {
		if err := r.spiked(steady, &p); err != nil || p.Rewound {
			return p, ctx.Err() != nil, err
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
		if p.ValLoss, err = r.Trainer.Evaluate(steady); err != nil {
			return p, false, err
		}
	}
	interrupted = ctx.Err() != nil && !r.Trainer.UnderWay()
	p.Requested = len(r.requests) > 0 && !r.Trainer.UnderWay()
	save := due.checkpoint || interrupted || p.Requested
	if save {
		if p.Requested {
			<-r.requests // one that comes from here on asks for another checkpoint
		}
		err = r.copyState(&p)
	}
	if recordErr := r.record(p); err != nil || recordErr != nil {
		if err == nil {
			err = r.rescue(steady)
		}
		return p, false, errors.Join(recordErr, err)
	}
	if p.Profile, err = r.profileAfter(p.Step, interrupted); err != nil {
		return p, interrupted, err
	}
	if save {
		r.startSaving()
	}
	if p.Requested {
		r.records.log.Info("checkpoint requested", "step", p.Step)
	}
	if p.Step == p.Steps || interrupted { // nobody tries again later, whatever checkpoint.on_error says
		w, _ := r.saver.result(true)
		p.Checkpoint, err = w.path, w.err
	}
	return p, interrupted, err
}

// chores are what a step asks for beside being recorded. They are for the state
// right behind it.
type chores struct{ health, evaluation, checkpoint bool }

func (r *Run) due(step int) chores {
	c := r.Config.Train
	last := step == c.Steps
	return chores{
		health:     multiple(step, c.HealthEvery),
		evaluation: r.hasValidation() && (last || multiple(step, c.EvalEvery)),
		checkpoint: last || r.regular(step),
	}
}

// multiple reports whether what comes every so many steps comes at a step; never
// where every is 0.
func multiple(step, every int) bool { return every > 0 && step%every == 0 }

// Tokens is how many Train was through with: those of a step that was repeated after a
// rewind count as often as they were computed, as they do in Energy.
func (r *Run) Tokens() int64 { return int64(r.executed) * r.Trainer.TokensPerStep() }

// Energy is what the devices used while Train was running, all that it does
// beside the steps included; ok says that it is known.
func (r *Run) Energy() (e Energy, ok bool) { return r.telemetry.energy() }

// MFU is the share of the devices' peak that the steps of the last whole interval
// reached; nil where it is not known.
func (r *Run) MFU() *float64 { return r.utilization.latest }

func (r *Run) record(p Progress) error {
	m, t, err := r.records.step(p, r.Trainer.FLOPsPerToken(), r.Trainer.TokensPerStep(), r.Memory.Total())
	r.publish(m, t)
	return err
}

func (r *Run) hasValidation() bool { return r.Corpus.Val != nil && r.Corpus.Val.Len() > 0 }
