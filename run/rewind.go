package run

import (
	"context"
	"errors"
	"fmt"

	"octet/checkpoint"
)

// handleSpike logs a spike and rewinds the run, as train.on_spike says.
//
// A rewind survives a kill without a record of its own: a run resumed from an older
// checkpoint meets the same spike and rewinds to the same checkpoint. Therefore handleSpike
// uses regular checkpoints only, which every run of the config has, and removes the newer
// ones before it truncates the records.
func (r *Run) handleSpike(ctx context.Context, p *Progress) error {
	log := r.records.log
	log.Warn("spike", "begin", p.Spike.Begin, "step", p.Step, "loss", p.Loss, "mean", p.Spike.Mean, "std", p.Spike.Std)
	if r.Config.Train.OnSpike != "rewind" {
		return nil
	}
	if err := r.collectSave(p, true); err != nil {
		return err
	}
	c, err := r.openSame(ctx, "the checkpoint before a spike", func() (*checkpoint.Checkpoint, error) { return r.checkpointBefore(p.Spike.Begin) })
	if errors.Is(err, checkpoint.ErrNone) {
		log.Warn("no rewind", "reason", "no checkpoint is older than the spike")
		return nil
	}
	if err != nil {
		return err
	}
	if err := errors.Join(r.Trainer.Rewind(ctx, c), c.Close()); err != nil {
		return fmt.Errorf("the loss of step %d is a spike: %w; lower optimizer.lr or raise optimizer.warmup, or use train.on_spike = \"log\"", p.Step, err)
	}
	p.Rewound, p.Checkpoint = true, c.Path
	to := r.Trainer.StepsDone()
	r.saver.last = saveResult{path: c.Path, step: to}
	if r.rank() > 0 {
		return nil
	}
	if err := r.discard(func(e checkpoint.Entry) bool { return e.Step > to }); err != nil {
		return err
	}
	cut, err := openRecords(r.folder.Dir, to)
	if err != nil {
		return err // the caller logs it in the former records
	}
	former := r.records
	r.records = cut
	r.log.Store(cut.log)
	r.records.log.Warn("rewound", "from", p.Step, "to", to)
	return former.close()
}

// checkpointBefore opens the newest intact regular checkpoint from before a step.
func (r *Run) checkpointBefore(step int) (*checkpoint.Checkpoint, error) {
	list, err := checkpoint.List(r.folder.checkpoints())
	if err != nil {
		return nil, err
	}
	for _, e := range list {
		if e.Damage != nil || e.Step >= step || !r.regular(e.Step) {
			continue
		}
		if c, err := checkpoint.Open(e.Path); err == nil {
			return c, nil
		}
	}
	return nil, checkpoint.ErrNone
}
