package run

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"time"

	"octet/backend"
	"octet/checkpoint"
	"octet/internal/writers"
	"octet/train"
)

// saver writes checkpoints beside the steps: a step pays for a copy of the state,
// a goroutine brings the copy to the disk. There is one copy, so that the next
// checkpoint waits for the one before it.
type saver struct {
	copied  train.Snapshot
	writing chan written // tells of the checkpoint under way; nil while there is none
	last    written      // the newest that is whole, as far as is known
}

// written is what became of a checkpoint. With an error it may be there or not.
type written struct {
	path string
	step int
	at   time.Time // zero: before this process began
	err  error
}

// result is what became of the checkpoint under way, if it is done; with wait, once
// it is.
func (s *saver) result(wait bool) (w written, ok bool) {
	if s.writing == nil {
		return w, false
	}
	if wait {
		w = <-s.writing
	} else {
		select {
		case w = <-s.writing:
		default:
			return w, false
		}
	}
	s.writing = nil
	if w.err == nil {
		s.last = w
	}
	return w, true
}

// copyState waits for the checkpoint before and copies what the next one holds.
func (r *Run) copyState(p *Progress) error {
	start := time.Now()
	if err := r.settle(p, true); err != nil {
		return err
	}
	waited := time.Now()
	if err := r.Trainer.Snapshot(&r.saver.copied, r.version, r.backendName()); err != nil {
		return err
	}
	p.SaveWait, p.SaveCopy = waited.Sub(start), time.Since(waited)
	return nil
}

// startSaving begins to write what copyState copied.
func (r *Run) startSaving() {
	step, choices := r.Trainer.StepsDone(), r.choices()
	done := make(chan written, 1)
	r.saver.writing = done
	go func() {
		path, err := r.save(step, choices)
		if err != nil {
			err = fmt.Errorf("writing the checkpoint of step %d: %w", step, err)
		}
		done <- written{path, step, time.Now(), err}
	}()
}

// settle takes note of what became of a checkpoint, see result, and decides by
// checkpoint.on_error whether the run goes on without one.
func (r *Run) settle(p *Progress, wait bool) error {
	w, ok := r.saver.result(wait)
	if !ok {
		return nil
	}
	p.Checkpoint = w.path
	if w.err != nil && r.Config.Checkpoint.OnError == "continue" {
		r.records.log.Warn("checkpoint failed", "step", r.Trainer.StepsDone(), "error", w.err.Error())
		p.Unsaved = w.err
		return nil
	}
	return w.err
}

// rescue writes a checkpoint where the records of a step could not be written: the state
// in memory is whole, and the run would lose the steps since the last checkpoint. A resumed
// run says which lines of the records are lost.
func (r *Run) rescue(ctx context.Context) error {
	if r.Trainer.UnderWay() { // the state is the one after that step
		res, err := r.next(ctx, false)
		if err != nil || res.Spike.Begin > 0 { // a run that resumed after a spike would not rewind
			return err
		}
	}
	if err := r.copyState(&Progress{}); err != nil {
		return err
	}
	step := r.Trainer.StepsDone()
	if err := r.Folder.gone(); err != nil {
		return err
	}
	if _, err := r.write(step, r.choices(), time.Now()); err != nil {
		return fmt.Errorf("writing the checkpoint of step %d: %w", step, err)
	}
	return nil
}

// choices are what the device chose by time; nil where it has no choice.
func (r *Run) choices() []byte {
	if c, ok := r.Devices[0].(backend.Chooser); ok {
		return c.Choices()
	}
	return nil
}

// save writes a checkpoint that the records vouch for.
func (r *Run) save(step int, choices []byte) (path string, err error) {
	start := time.Now()
	if err := r.Folder.gone(); err != nil {
		return "", err
	}
	// What the checkpoint says is done must be in the records first.
	if err := r.records.flush(); err != nil {
		return "", err
	}
	return r.write(step, choices, start)
}

// write writes a checkpoint, which takes from start on, and deletes those that retention
// lets go.
func (r *Run) write(step int, choices []byte, start time.Time) (path string, err error) {
	if err := r.Folder.recordChoices(choices); err != nil {
		return "", err
	}
	if path, err = checkpoint.Save(r.Folder.Checkpoints(), step, r.saver.copied.Contents()); err != nil {
		return "", err
	}
	r.records.log.Info("checkpoint", "step", step, "path", path, "write_s", time.Since(start).Seconds())
	// What an interruption writes comes beside those that the run would have
	// without it, since a rewind may need them, and goes with the next of these.
	keep := r.Config.Checkpoint.KeepLast
	err = r.discard(func(e checkpoint.Entry) bool { return e.Step < step && !r.regular(e.Step) })
	if !r.regular(step) && step < r.Config.Train.Steps {
		keep++
	}
	_, retainErr := checkpoint.Retain(r.Folder.Checkpoints(), keep, r.Config.Checkpoint.KeepEvery)
	if err = errors.Join(err, retainErr); err != nil {
		err = fmt.Errorf("it is whole, but older ones cannot be removed: %w", err)
	}
	return path, err
}

// regular reports whether a step writes a checkpoint wherever the run stops.
func (r *Run) regular(step int) bool { return multiple(step, r.Config.Checkpoint.Every) }

// discard removes some of the checkpoints; as Retain, none that is damaged.
func (r *Run) discard(unwanted func(checkpoint.Entry) bool) error {
	list, err := checkpoint.List(r.Folder.Checkpoints())
	for _, e := range list {
		if e.Damage == nil && unwanted(e) {
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

// Best is where a run predicted its validation text best.
type Best struct {
	Step       int // 0: it was never evaluated
	Loss       float64
	Checkpoint string // of that step; empty if none is kept
}

// BestSoFar looks into the records, which know of the steps before a resume, too, and of
// none that a rewind has undone.
func (r *Run) BestSoFar() (b Best, err error) {
	if b.Step, b.Loss, err = writers.LeastValLoss(r.Folder.path(metricsFile)); err != nil {
		return b, err
	}
	list, err := checkpoint.List(r.Folder.Checkpoints())
	for _, e := range list {
		if e.Damage == nil && e.Step == b.Step {
			b.Checkpoint = e.Path
		}
	}
	return b, err
}

// withLastCheckpoint tells the user what is safe, and how to go on.
func (r *Run) withLastCheckpoint(err error) error {
	if r.Folder.gone() != nil { // what lies there is not of this run
		return err
	}
	path, listErr := r.NewestCheckpoint()
	safe, next := "the last checkpoint is "+path, fmt.Sprintf(", from which --resume --out %s goes on", r.Folder.Dir)
	if listErr != nil {
		safe, next = "there is no checkpoint yet", ""
	}
	if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
		next = ": free some space, then octet train --resume --out " + r.Folder.Dir
	}
	return fmt.Errorf("%w; %s%s", err, safe, next)
}
