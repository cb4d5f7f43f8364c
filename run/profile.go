package run

import (
	"context"
	"errors"
	"os"

	"octet/backend"
	"octet/internal/disk"
	"octet/train"
)

// The first steps of a process fill caches and calibrate, and are not profiled. A shorter
// run profiles its last steps.
const (
	warmUpSteps   = 3
	profiledSteps = 5
)

// The number of bursts for each peak; the best one counts. More bursts find the peak more
// reliably on a shared machine.
const (
	flopsBursts = 20
	bytesBursts = 5
)

// Profile is the record of some steps of a run on the device of rank 0. Profiling does not
// change their results.
type Profile struct {
	*backend.Profile
	Peaks backend.Peaks // of the device, measured right before the steps
	Trace string        // path of the trace
}

// profiler records a profile.
type profiler struct {
	*backend.Profile
	peaks backend.Peaks
}

// profiledRange returns the range of steps to profile: after from, up to to.
func (r *Run) profiledRange() (from, to int) {
	to = min(r.Resumed+warmUpSteps+profiledSteps, r.Config.Train.Steps)
	return max(to-profiledSteps, r.Resumed), to
}

// next calls Trainer.Next and records the step if it is to be profiled. ahead allows the
// step after it to be queued before the result of this one is known. Profiled steps are not
// queued ahead, so that a span holds one step.
func (r *Run) next(ctx context.Context, ahead bool) (train.StepResult, error) {
	p, done := r.profile, r.Trainer.StepsDone()
	from, _ := r.profiledRange()
	if p == nil || done < from {
		if ahead && (p == nil || done+1 < from) {
			return r.Trainer.NextAhead(ctx)
		}
		return r.Trainer.Next(ctx)
	}
	if d, ok := r.Device.(backend.Metered); ok && p.Spans() == 0 {
		m := d.Meter()
		p.peaks = backend.Peaks{FLOPs: best(flopsBursts, m.FLOPs), Bytes: best(bytesBursts, m.Bytes)}
	}
	p.Begin()
	defer p.End()
	return r.Trainer.Next(ctx)
}

// profileAfter ends the profile and writes its trace if step was its last one. interrupted
// says that no steps follow.
func (r *Run) profileAfter(step int, interrupted bool) (*Profile, error) {
	p := r.profile
	if _, to := r.profiledRange(); p == nil || p.Spans() == 0 || step < to && !interrupted {
		return nil, nil
	}
	r.profile, r.Trainer.Execute = nil, nil // frees the recorded spans
	path := r.folder.path(traceFile)
	f, err := disk.Open(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC)
	if err != nil {
		return nil, err
	}
	err = errors.Join(p.WriteTrace(f), f.Close())
	return &Profile{Profile: p.Profile, Peaks: p.peaks, Trace: path}, err
}

// best returns the highest rate of n bursts.
func best(n int, burst func() float64) (rate float64) {
	for range n {
		rate = max(rate, burst())
	}
	return rate
}
