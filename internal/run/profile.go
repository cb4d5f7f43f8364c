package run

import (
	"context"
	"errors"
	"os"
	"runtime"
	"sync"

	"octet/backend"
	"octet/internal/disk"
	"octet/train"
)

// Of the steps of this process the first ones fill caches and calibrate, and
// are not profiled. A shorter run profiles what it has.
const (
	warmUpSteps   = 3
	profiledSteps = 5
)

// How many bursts are taken of each rate; the best one counts. More of them
// find the peak more surely where others use the machine too.
const (
	flopsBursts = 20
	bytesBursts = 5
)

// Profile is the record of some steps of a run on its first device. They were
// steps like the others.
type Profile struct {
	*backend.Profile
	Peaks backend.Peaks // of the device, measured right before
	Trace string        // path of the trace
}

// profiler is a profile in the making.
type profiler struct {
	*backend.Profile
	peaks backend.Peaks
}

// profiledRange is the steps to profile: those after from, up to to.
func (r *Run) profiledRange() (from, to int) {
	to = min(r.Resumed+warmUpSteps+profiledSteps, r.Config.Train.Steps)
	return max(to-profiledSteps, r.Resumed), to
}

// next is Trainer.Next, recorded if the step is one to profile. ahead says that
// the step after it follows, whatever comes of this one. What is profiled is given to
// the devices step by step, so that a span holds one.
func (r *Run) next(ctx context.Context, ahead bool) (train.StepResult, error) {
	p, done := r.profile, r.Trainer.StepsDone()
	from, _ := r.profiledRange()
	if p == nil || done < from {
		if ahead && (p == nil || done+1 < from) {
			return r.Trainer.NextAhead(ctx)
		}
		return r.Trainer.Next(ctx)
	}
	if d, ok := r.Devices[0].(backend.Metered); ok && p.Spans() == 0 {
		m := d.Meter()
		p.peaks = backend.Peaks{FLOPs: best(flopsBursts, m.FLOPs), Bytes: best(bytesBursts, m.Bytes)}
	}
	p.Begin()
	defer p.End()
	return r.Trainer.Next(ctx)
}

// profileAfter ends the profile and writes its trace if step was the last of
// it. interrupted says that there are no more steps.
func (r *Run) profileAfter(step int, interrupted bool) (*Profile, error) {
	p := r.profile
	if _, to := r.profiledRange(); p == nil || p.Spans() == 0 || step < to && !interrupted {
		return nil, nil
	}
	r.profile, r.Trainer.Execute = nil, nil // and what was recorded may go
	path := r.Folder.path(traceFile)
	f, err := disk.Open(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC)
	if err != nil {
		return nil, err
	}
	err = errors.Join(p.WriteTrace(f), f.Close())
	return &Profile{Profile: p.Profile, Peaks: p.peaks, Trace: path}, err
}

// peakFLOPs returns the FLOP/s that all devices reach together: the sum of each device's
// best burst, of some milliseconds; 0 if a device has no meter. Devices that are threads of
// this machine share its processors: the sum is scaled down where threads outnumber them,
// since the best burst of each device had a processor to itself.
func peakFLOPs(devices []backend.Backend, bursts int) (sum float64) {
	rates := make([]float64, len(devices))
	var all sync.WaitGroup
	for i, d := range devices {
		if m, ok := d.(backend.Metered); ok {
			all.Go(func() { rates[i] = best(bursts, m.Meter().FLOPs) })
		}
	}
	all.Wait()
	threads := 0
	for i, d := range devices {
		if rates[i] == 0 {
			return 0
		}
		sum += rates[i]
		threads += d.Spec().Threads
	}
	if processors := min(runtime.GOMAXPROCS(0), runtime.NumCPU()); threads > processors {
		sum *= float64(processors) / float64(threads)
	}
	return sum
}

// best is the best of n bursts.
func best(n int, burst func() float64) (rate float64) {
	for range n {
		rate = max(rate, burst())
	}
	return rate
}
