package run

import (
	"context"
	"errors"
	"fmt"
	"time"

	"octet/backend"
	"octet/checkpoint"
	"octet/train"
)

// Progress is what Train reports after every step.
type Progress struct {
	train.StepResult
	Steps      int               // of the whole run
	Evaluated  bool              // this step evaluated
	ValLoss    float64           // nats per token, if it did
	Health     train.Health      // of this step, if it was measured
	Checkpoint string            // path, if this step wrote one, or the run went back to one
	Recipe     string            // if this step was the first under it
	Rewound    bool              // the step made a spike, and the run went back to Checkpoint
	ETA        time.Duration     // at the pace of this process so far, evaluations and checkpoints included
	Profile    *Profile          // of the steps up to this one, if it is the last of those that were profiled
	Devices    []backend.Reading // of each device, a second or so ago; nil where none has sensors
	Silent     error             // why a device does not tell what its sensors should; said once
}

// Train runs the remaining steps and reports each. When ctx is cancelled it
// finishes the step, writes a checkpoint and returns ctx's error. Any other
// error says where the last checkpoint is.
func (r *Run) Train(ctx context.Context, report func(Progress)) error {
	r.telemetry.begin()
	defer r.telemetry.end()
	start := time.Now()
	for done := 1; r.Trainer.StepsDone() < r.Config.Train.Steps; done++ {
		p, interrupted, err := r.step(ctx)
		if err != nil {
			r.records.log.Error("stopped", "step", r.Trainer.StepsDone(), "error", err.Error())
			return r.withLastCheckpoint(err)
		}
		p.ETA = seconds(time.Since(start).Seconds() / float64(done) * float64(p.Steps-r.Trainer.StepsDone()))
		report(p)
		if interrupted {
			r.records.log.Info("interrupted", "step", p.Step)
			return ctx.Err()
		}
	}
	return nil
}

// step runs one step with all that belongs to it. interrupted says that ctx was
// cancelled in time for this step to write a checkpoint.
func (r *Run) step(ctx context.Context) (p Progress, interrupted bool, err error) {
	c := r.Config
	steady := context.WithoutCancel(ctx) // a step is never cut in two
	p.Steps = c.Train.Steps
	phase := r.Trainer.Phase
	if p.StepResult, err = r.next(steady); err != nil {
		if p.Step > 0 { // the step is over; it is the last of too many skipped ones
			err = errors.Join(err, r.record(p))
		}
		return p, false, err
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
	if every := c.Train.HealthEvery; every > 0 && p.Step%every == 0 {
		if p.Health, err = r.Trainer.Health(steady); err != nil {
			return p, false, err
		}
		for _, alarm := range p.Health.Alarms {
			r.records.log.Warn(alarm, "step", p.Step)
		}
	}
	last := p.Step == c.Train.Steps
	if r.hasValidation() && (last || c.Train.EvalEvery > 0 && p.Step%c.Train.EvalEvery == 0) {
		p.Evaluated = true
		if p.ValLoss, err = r.Trainer.Evaluate(steady); err != nil {
			return p, false, err
		}
	}
	if err := r.record(p); err != nil {
		return p, false, err
	}
	interrupted = ctx.Err() != nil
	if p.Profile, err = r.profileAfter(p.Step, interrupted); err != nil {
		return p, interrupted, err
	}
	if last || interrupted || r.regular(p.Step) {
		p.Checkpoint, err = r.save()
	}
	return p, interrupted, err
}

// Energy is what the devices used while Train was running, all that it does
// beside the steps included; ok says that it is known.
func (r *Run) Energy() (e Energy, ok bool) { return r.telemetry.energy() }

func (r *Run) record(p Progress) error {
	return r.records.step(p, r.Trainer.FLOPsPerToken(), r.Trainer.TokensPerStep(), r.Memory.Total(), r.PeakFLOPs)
}

func (r *Run) hasValidation() bool { return r.Corpus.Val != nil && r.Corpus.Val.Len() > 0 }

// save writes a checkpoint and deletes those that retention lets go.
func (r *Run) save() (string, error) {
	contents, err := r.Trainer.Contents(r.version, r.backendName())
	if err != nil {
		return "", err
	}
	// What the checkpoint says is done must be in the records first.
	if err := r.records.flush(); err != nil {
		return "", err
	}
	if err := r.Folder.recordChoices(r.Devices[0]); err != nil {
		return "", err
	}
	step := r.Trainer.StepsDone()
	path, err := checkpoint.Save(r.Folder.Checkpoints(), step, contents)
	if err != nil {
		return "", fmt.Errorf("writing the checkpoint: %w", err)
	}
	r.records.log.Info("checkpoint", "step", step, "path", path)
	// What an interruption writes comes beside those that the run would have
	// without it, since a rewind may need them, and goes with the next of these.
	keep := r.Config.Checkpoint.KeepLast
	err = r.discard(func(e checkpoint.Entry) bool { return e.Step < step && !r.regular(e.Step) })
	if !r.regular(step) && step < r.Config.Train.Steps {
		keep++
	}
	_, retainErr := checkpoint.Retain(r.Folder.Checkpoints(), keep, r.Config.Checkpoint.KeepEvery)
	return path, errors.Join(err, retainErr)
}

// regular reports whether a step writes a checkpoint wherever the run stops.
func (r *Run) regular(step int) bool {
	every := r.Config.Checkpoint.Every
	return every > 0 && step%every == 0
}

// discard removes some of the checkpoints.
func (r *Run) discard(unwanted func(checkpoint.Entry) bool) error {
	list, err := checkpoint.List(r.Folder.Checkpoints())
	for _, e := range list {
		if unwanted(e) {
			err = errors.Join(err, checkpoint.Discard(e.Path))
		}
	}
	return err
}

// NewestCheckpoint is the path of the newest checkpoint.
func (r *Run) NewestCheckpoint() (string, error) {
	list, err := checkpoint.List(r.Folder.Checkpoints())
	if err != nil {
		return "", err
	}
	for _, e := range list {
		if e.Damage == nil {
			return e.Path, nil
		}
	}
	return "", checkpoint.ErrNone
}

// withLastCheckpoint tells the user what is safe.
func (r *Run) withLastCheckpoint(err error) error {
	path, listErr := r.NewestCheckpoint()
	if listErr != nil {
		return fmt.Errorf("%w; there is no checkpoint yet", err)
	}
	return fmt.Errorf("%w; the last checkpoint is %s, from which --resume --out %s goes on", err, path, r.Folder.Dir)
}
