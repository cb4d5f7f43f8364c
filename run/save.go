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

// saver writes checkpoints while steps run: a step copies the state, and a goroutine writes
// the copy to disk. There is one copy, so a checkpoint waits for the one before it.
type saver struct {
	copied  train.Snapshot
	writing chan saveResult // receives the result of the checkpoint being written; nil if there is none
	last    saveResult      // the newest intact checkpoint that is known
}

// saveResult is the result of writing a checkpoint. If err is not nil, the checkpoint may or
// may not exist.
type saveResult struct {
	path string
	step int
	at   time.Time // zero: before this process began
	err  error
}

// result returns the result of the checkpoint being written, if it is done. With wait, it
// blocks until then. ok is false if there is none.
func (s *saver) result(wait bool) (w saveResult, ok bool) {
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

// copyState waits for the previous checkpoint and copies the state for the next one.
func (r *Run) copyState(p *Progress) error {
	start := time.Now()
	if err := r.collectSave(p, true); err != nil {
		return err
	}
	waited := time.Now()
	if err := r.Trainer.Snapshot(&r.saver.copied, r.version, r.Device.Spec().Name()); err != nil {
		return err
	}
	p.SaveWait, p.SaveCopy = waited.Sub(start), time.Since(waited)
	return nil
}

// startSaving starts to write the copy of copyState. The checkpoint of a run with one rank is
// whole; several ranks write a shard each. If synced, the records of the checkpoint's steps
// reach the disk first.
func (r *Run) startSaving(ctx context.Context, synced bool) error {
	step, choices, start := r.Trainer.StepsDone(), r.choices(), time.Now()
	save := func() (string, error) {
		return checkpoint.Save(r.folder.checkpoints(), step, r.saver.copied.Contents())
	}
	if r.group != nil {
		var err error
		if save, err = r.startShard(ctx, step); err != nil {
			return err
		}
	}
	done := make(chan saveResult, 1)
	r.saver.writing = done
	go func() {
		path, err := r.save(step, choices, start, synced, save)
		if err != nil {
			err = fmt.Errorf("writing the checkpoint of step %d: %w", step, err)
		}
		done <- saveResult{path, step, time.Now(), err}
	}()
	return nil
}

// collectSave records the result of a checkpoint, see result. checkpoint.on_error decides
// whether an error stops the run.
func (r *Run) collectSave(p *Progress, wait bool) error {
	w, ok := r.saver.result(wait)
	if !ok {
		return nil
	}
	p.Checkpoint = w.path
	if w.err != nil && r.Config.Checkpoint.OnError == "continue" {
		r.records.log.Warn("checkpoint failed", "step", r.Trainer.StepsDone(), "error", w.err.Error())
		p.SaveError = w.err
		return nil
	}
	return w.err
}

// rescue writes a checkpoint after the records of a step could not be written: the state in
// memory is intact, and the run would otherwise lose the steps since the last checkpoint. A
// resumed run reports which lines of the records are lost.
func (r *Run) rescue(ctx context.Context) error {
	if r.Trainer.UnderWay() { // the state is the one after that step
		res, err := r.next(ctx, false)
		if err != nil || res.Spike.Begin > 0 { // a run resumed after a spike would not rewind
			return err
		}
	}
	if err := r.copyState(&Progress{}); err != nil {
		return err
	}
	if err := r.startSaving(ctx, false); err != nil {
		return err
	}
	w, _ := r.saver.result(true)
	return w.err
}

// choices returns the algorithms that the device chose by timing; nil if it does not choose.
func (r *Run) choices() []byte {
	if c, ok := r.Device.(backend.Chooser); ok {
		return c.Choices()
	}
	return nil
}

// save writes a checkpoint by write, and deletes those that retention drops. start is the
// beginning of the logged duration.
func (r *Run) save(step int, choices []byte, start time.Time, synced bool, write func() (string, error)) (path string, err error) {
	if r.rank() > 0 {
		return write()
	}
	if err := r.folder.checkInPlace(); err != nil {
		return "", err
	}
	if synced { // the records must hold every step that the checkpoint includes
		if err := r.records.flush(); err != nil {
			return "", err
		}
	}
	if err := r.folder.recordChoices(choices); err != nil {
		return "", err
	}
	if path, err = write(); err != nil {
		return "", err
	}
	r.records.log.Info("checkpoint", "step", step, "path", path, "write_s", time.Since(start).Seconds())
	// The checkpoint of an interruption is kept in addition to the regular ones, which a
	// rewind may need. The next regular checkpoint removes it.
	keep := r.Config.Checkpoint.KeepLast
	err = r.discard(func(e checkpoint.Entry) bool { return e.Step < step && !r.regular(e.Step) })
	if !r.regular(step) && step < r.Config.Train.Steps {
		keep++
	}
	_, retainErr := checkpoint.Retain(r.folder.checkpoints(), keep, r.Config.Checkpoint.KeepEvery)
	if err = errors.Join(err, retainErr); err != nil {
		err = fmt.Errorf("it is intact, but older ones cannot be removed: %w", err)
	}
	return path, err
}

// regular reports whether checkpoint.every gives a step a checkpoint.
func (r *Run) regular(step int) bool { return multiple(step, r.Config.Checkpoint.Every) }

// discard removes the unwanted checkpoints. Like Retain, it keeps damaged ones.
func (r *Run) discard(unwanted func(checkpoint.Entry) bool) error {
	list, err := checkpoint.List(r.folder.checkpoints())
	for _, e := range list {
		if e.Damage == nil && unwanted(e) {
			err = errors.Join(err, checkpoint.Discard(e.Path))
		}
	}
	return err
}

// NewestCheckpoint returns the path of the newest checkpoint.
func (r *Run) NewestCheckpoint() (string, error) {
	list, err := checkpoint.List(r.folder.checkpoints())
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

// Best is the step with the lowest validation loss.
type Best struct {
	Step       int // 0: no step was evaluated
	Loss       float64
	Checkpoint string // of that step; empty if it is not kept
}

// BestSoFar reads the best step from the records, which include the steps before a resume
// and exclude those that a rewind has undone.
func (r *Run) BestSoFar() (b Best, err error) {
	if b.Step, b.Loss, err = writers.MinValLoss(r.folder.path(metricsFile)); err != nil {
		return b, err
	}
	list, err := checkpoint.List(r.folder.checkpoints())
	for _, e := range list {
		if e.Damage == nil && e.Step == b.Step {
			b.Checkpoint = e.Path
		}
	}
	return b, err
}

// ErrResumable is wrapped by an error of Train after which a new process can resume the
// run: start it again with [Options].Resume.
var ErrResumable = errors.New("resume the run")

// withLastCheckpoint adds the last checkpoint to an error, and ErrResumable.
func (r *Run) withLastCheckpoint(err error) error {
	if r.folder.checkInPlace() != nil { // the folder there is not that of this run
		return err
	}
	path, listErr := r.NewestCheckpoint()
	safe := "the last checkpoint is " + path
	if listErr != nil {
		safe = "there is no checkpoint yet"
	}
	switch {
	case errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT):
		return fmt.Errorf("%w; %s: free some space, then %w", err, safe, ErrResumable)
	case listErr != nil:
		return fmt.Errorf("%w; %s", err, safe)
	}
	return fmt.Errorf("%w; %s: %w", err, safe, ErrResumable)
}
