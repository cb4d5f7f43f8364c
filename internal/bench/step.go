package bench

import (
	"context"
	"errors"
	"fmt"
	"runtime"

	"octet/backend"
	"octet/backend/world"
	"octet/data"
	"octet/internal/hostmem"
	"octet/train"
)

// Step holds the values of a training step in a Result, beside its times.
type Step struct {
	Model      string  `json:"model"` // the preset
	Parameters int64   `json:"parameters"`
	Tokens     int64   `json:"tokens"` // of a step
	TokensPerS float64 `json:"tokens_per_s"`
	// Memory is the anonymous memory that building the trainer and running steps added to
	// the process; 0 if it is unknown.
	Memory  int64 `json:"memory_bytes,omitempty"`
	Planned int64 `json:"planned_bytes"`
	// Allocations of the Go heap in one step, including its input and output.
	Allocations int64 `json:"allocations"`
	// TimeRatio is the step's time over that of the first configuration: the median over
	// consecutive steps; 1 for the first.
	TimeRatio float64 `json:"time_ratio"`
}

// trainer is a configuration that is ready to run steps: a trainer for each rank, in this
// process.
type trainer struct {
	*train.Trainer // of rank 0
	ranks          []*train.Trainer
	devices        []backend.Backend
	groups         []*world.Group
	step           Step
}

// each calls f for all ranks.
func (t *trainer) each(f func(*train.Trainer) error) error {
	return world.Each(t.groups, func(g *world.Group) error { return f(t.ranks[g.Rank()]) })
}

// next runs a step on all ranks, and returns the result of rank 0.
func (t *trainer) next(ctx context.Context) (result train.StepResult, err error) {
	err = t.each(func(rank *train.Trainer) error {
		r, err := rank.Next(ctx)
		if rank == t.Trainer {
			result = r
		}
		return err
	})
	return result, err
}

// Steps are training steps of some configurations, ready to run.
type Steps struct {
	bench    *Bench
	trainers []*trainer
}

// Steps prepares whole training steps on random tokens. Its errors are those of the user's
// input.
func (b *Bench) Steps(ctx context.Context, configs []train.Config) (*Steps, error) {
	s := &Steps{bench: b}
	for _, c := range configs {
		t, err := b.newTrainer(ctx, c)
		if t != nil {
			s.trainers = append(s.trainers, t)
		}
		if err != nil {
			return nil, errors.Join(err, s.Close())
		}
	}
	return s, nil
}

// Close closes the devices.
func (s *Steps) Close() (err error) {
	for _, t := range s.trainers {
		for _, d := range t.devices {
			if d != nil {
				err = errors.Join(err, d.Close())
			}
		}
	}
	return err
}

// Measure runs steps of all configurations, interleaved.
func (s *Steps) Measure(ctx context.Context) ([]Result, error) {
	var bursts []burst
	for _, t := range s.trainers {
		bursts = append(bursts, func() (float64, error) {
			r, err := t.next(ctx)
			return r.Elapsed.Seconds(), err
		})
	}
	meter := s.bench.meter
	if meter != nil {
		bursts = append(bursts, rate(meter.FLOPs))
	}
	samples, err := interleave(s.bench.o.Seconds, bursts...)
	if err != nil {
		return nil, err
	}
	peak := 0.0
	if meter != nil {
		peak = median(samples[len(s.trainers)])
	}
	var list []Result
	for i, t := range s.trainers {
		r := Result{Bench: "step", Name: t.Config.Recipe, Step: &t.step}
		cost := backend.Cost{FLOPs: int64(t.FLOPsPerToken() * float64(t.step.Tokens))}
		r = s.bench.result(r, samples[i], cost, byFLOPs, peak)
		t.step.TokensPerS = float64(t.step.Tokens) / r.Median
		t.step.TimeRatio = ratio(samples[i], samples[0])
		list = append(list, r)
	}
	return list, nil
}

// newTrainer builds a trainer and runs the steps that calibrate and warm up. The caller must
// close a trainer even if newTrainer also returns an error.
func (b *Bench) newTrainer(ctx context.Context, c train.Config) (*trainer, error) {
	before := anonymousMemory()
	job, err := train.NewJob(c, b.spec)
	if err != nil {
		return nil, err
	}
	programs, err := backend.Lower(b.spec, job.Programs()...)
	if err != nil {
		return nil, err
	}
	memory, err := job.MemoryOf(b.spec, programs...)
	if err != nil {
		return nil, err
	}
	planned := memory.Total() * int64(c.Train.Ranks)
	if b.spec.HostMemory {
		if err := hostmem.Check(fmt.Sprintf("a step of %s", c.Recipe), planned, hostmem.SmallerRun); err != nil {
			return nil, err
		}
	}
	t := &trainer{step: Step{Model: c.Model.Preset, Tokens: job.TokensPerStep(), Planned: planned}}
	for _, g := range job.ParamGroups() {
		t.step.Parameters += g.N
	}
	if err := t.open(b.o, c, job); err != nil {
		return t, err
	}
	if err := t.each(func(rank *train.Trainer) error { return rank.Init(ctx) }); err != nil {
		return t, err
	}
	// The first step calibrates, and a backend may allocate more in the second.
	var counts [3]runtime.MemStats
	for i := range counts {
		if _, err := t.next(ctx); err != nil {
			return t, err
		}
		runtime.ReadMemStats(&counts[i])
	}
	t.step.Allocations = int64(counts[2].Mallocs - counts[1].Mallocs)
	if before > 0 {
		t.step.Memory = anonymousMemory() - before
	}
	return t, nil
}

// open opens a device and a trainer for each rank. job is that of rank 0.
func (t *trainer) open(o Options, c train.Config, job *train.Job) error {
	n := c.Train.Ranks
	if n > 1 && !job.Device.HostMemory {
		return fmt.Errorf("train.ranks = %d: on backend %s each rank is a process, and this command has one: set train.ranks = 1", n, job.Device.Backend)
	}
	timeout, err := world.Timeout()
	if err != nil {
		return err
	}
	t.groups, t.ranks, t.devices = world.Local(n, timeout), make([]*train.Trainer, n), make([]backend.Backend, n)
	err = world.Each(t.groups, func(g *world.Group) (err error) {
		rank, job := g.Rank(), job
		if rank > 0 {
			if job, err = train.NewJob(c, job.Device); err != nil {
				return err
			}
		}
		if t.devices[rank], err = backend.Open(o.Backend, backend.Options{Threads: o.Threads, Group: g}); err != nil {
			return err
		}
		t.ranks[rank], err = train.NewTrainer(job, &data.Corpus{Train: tokens{c.Model.Vocab}}, t.devices[rank], g)
		return err
	})
	t.Trainer = t.ranks[0]
	return err
}
