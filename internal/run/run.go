// Package run is a training run with its folder: it ties the trainer to the
// files that command.md promises, and resumes them.
//
// A Run goes through three calls. Start does everything that can fail because
// of the user's input and leaves nothing behind if it does. Train runs the
// steps, writes the records and the checkpoints, and tells a callback. Close
// frees the devices and the folder.
package run

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"math"
	"os"
	"time"

	"octet/backend"
	"octet/checkpoint"
	"octet/data"
	"octet/internal/config"
	"octet/train"
)

// Options is what a run is started with.
type Options struct {
	Config  train.Config // resolved; of a resumed run, the one in its folder
	Dir     string
	Resume  bool
	Backend string // name:device, as given; empty picks the best
	Threads int
	Version string // of octet, for state.json
	Sources fs.FS  // corpus of last resort
}

// Run is a run under way.
type Run struct {
	Config     train.Config
	Folder     *Folder
	Corpus     *data.Corpus
	Note       string // which corpus, where nobody named one
	Job        *train.Job
	Trainer    *train.Trainer
	Devices    []backend.Backend
	Memory     train.Memory
	Resumed    int                // step that the run goes on from
	WasResumed bool               // it was asked to resume, whether there was a checkpoint or not
	Skipped    []checkpoint.Entry // damaged checkpoints that were passed over
	Moved      string             // the backend that wrote the checkpoint, if another one

	version string
	log     *slog.Logger
	records *records
}

// Start opens everything. Its errors are the user's to mend; nothing is left
// behind then.
func Start(ctx context.Context, o Options) (r *Run, err error) {
	r = &Run{Config: o.Config, WasResumed: o.Resume, version: o.Version}
	if o.Resume {
		r.Folder, err = Resume(o.Dir)
	} else {
		r.Folder, err = Create(o.Dir, o.Config)
	}
	if err != nil {
		return nil, err
	}
	defer func() {
		if err == nil {
			return
		}
		if r.Corpus != nil {
			err = errors.Join(err, r.Corpus.Close())
		}
		for _, d := range r.Devices {
			err = errors.Join(err, d.Close())
		}
		if o.Resume {
			err = errors.Join(err, r.Folder.Close())
		} else {
			err = errors.Join(err, r.Folder.Discard())
		}
	}()
	if r.Corpus, r.Note, err = OpenCorpus(ctx, o.Config, o.Sources); err != nil {
		return nil, err
	}
	if r.Job, err = train.NewJob(o.Config); err != nil {
		return nil, err
	}
	if r.Devices, err = backend.Open(o.Backend, backend.Options{Threads: o.Threads, Ranks: o.Config.Train.Ranks}); err != nil {
		return nil, err
	}
	if r.Trainer, err = train.NewTrainer(r.Job, r.Corpus, r.Devices); err != nil {
		return nil, err
	}
	if err := r.plan(); err != nil {
		return nil, err
	}
	if err := r.begin(ctx, o.Resume); err != nil {
		return nil, err
	}
	if err := r.Folder.recordData(r.Corpus.Info); err != nil {
		return nil, err
	}
	return r, r.openRecords()
}

func (r *Run) plan() error {
	spec := r.Devices[0].Spec()
	driver, _, err := backend.Find(spec.Backend)
	if err != nil {
		return err
	}
	programs, err := r.Job.Lowered(driver, spec)
	if err != nil {
		return err
	}
	r.Memory = r.Job.MemoryOf(spec.Align, programs)
	return nil
}

// begin sets the weights: from the newest whole checkpoint, from model.init,
// or from the seed.
func (r *Run) begin(ctx context.Context, resume bool) error {
	if resume {
		c, skipped, err := checkpoint.Newest(r.Folder.Checkpoints())
		r.Skipped = skipped
		if err == nil {
			err = r.Trainer.Restore(ctx, c)
			r.Resumed = r.Trainer.StepsDone()
			if state, stateErr := train.ReadState(c); stateErr == nil && state.Backend != r.backendName() {
				r.Moved = state.Backend
			}
			return errors.Join(err, c.Close())
		}
		if !errors.Is(err, checkpoint.ErrNone) {
			return err
		}
	}
	if r.Config.Model.Init != "" {
		return r.Trainer.InitFrom(ctx, r.Config.Model.Init)
	}
	return r.Trainer.Init(ctx)
}

func (r *Run) backendName() string { return r.Devices[0].Spec().Backend }

// Close frees everything.
func (r *Run) Close() error {
	err := errors.Join(r.records.close(), r.Corpus.Close())
	for _, d := range r.Devices {
		err = errors.Join(err, d.Close())
	}
	return errors.Join(err, r.Folder.Close())
}

// Progress is what Train reports after every step.
type Progress struct {
	train.StepResult
	Steps      int
	ValLoss    float64 // NaN unless this step evaluated
	Checkpoint string  // path, if this step wrote one
	Eval, Save time.Duration
}

// Train runs the remaining steps. When ctx is cancelled it finishes the step,
// writes a checkpoint and returns ctx's error.
func (r *Run) Train(ctx context.Context, report func(Progress)) error {
	c := r.Config
	steady := context.WithoutCancel(ctx) // a step is never cut in two
	for r.Trainer.StepsDone() < c.Train.Steps {
		res, err := r.Trainer.Next(steady)
		if err != nil {
			r.log.Error("stopped", "step", res.Step, "error", err.Error())
			return r.withLastCheckpoint(err)
		}
		p := Progress{StepResult: res, Steps: c.Train.Steps, ValLoss: math.NaN()}
		last := res.Step == c.Train.Steps
		if r.Corpus.Val != nil && r.Corpus.Val.Len() > 0 && (last || c.Train.EvalEvery > 0 && res.Step%c.Train.EvalEvery == 0) {
			start := time.Now()
			if p.ValLoss, err = r.Trainer.Evaluate(steady); err != nil {
				return r.withLastCheckpoint(err)
			}
			p.Eval = time.Since(start)
		}
		if err := r.records.step(p, r.Job.FLOPsPerToken(), r.Job.TokensPerStep(), r.Memory.Total()); err != nil {
			return err
		}
		interrupted := ctx.Err() != nil
		if last || interrupted || c.Checkpoint.Every > 0 && res.Step%c.Checkpoint.Every == 0 {
			start := time.Now()
			if p.Checkpoint, err = r.save(); err != nil {
				return err
			}
			p.Save = time.Since(start)
		}
		report(p)
		if interrupted && !last {
			return ctx.Err()
		}
	}
	return nil
}

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
	path, err := checkpoint.Save(r.Folder.Checkpoints(), r.Trainer.StepsDone(), contents)
	if err != nil {
		return "", fmt.Errorf("writing the checkpoint: %w", err)
	}
	r.log.Info("checkpoint", "step", r.Trainer.StepsDone(), "path", path)
	_, err = checkpoint.Retain(r.Folder.Checkpoints(), r.Config.Checkpoint.KeepLast, r.Config.Checkpoint.KeepEvery)
	return path, err
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
		return fmt.Errorf("%w\nThere is no checkpoint yet", err)
	}
	return fmt.Errorf("%w\nThe last checkpoint is %s", err, path)
}

// LoadConfig reads a run's resolved config, with what a resumed run may change.
func LoadConfig(dir string, flags config.Flags, assignments []string) (train.Config, error) {
	loaded, err := config.Load(config.Args{File: ConfigPath(dir), Assignments: assignments, Flags: flags})
	if errors.Is(err, os.ErrNotExist) {
		return train.Config{}, fmt.Errorf("%s is not a run folder: it has no %s", dir, configFile)
	}
	if err != nil {
		return train.Config{}, err
	}
	for _, key := range loaded.FromCommand {
		if key != "train.steps" {
			return train.Config{}, fmt.Errorf("%s was given with --resume: a resumed run may change its length (train.steps), --threads and --backend, nothing else", key)
		}
	}
	return loaded.Config, nil
}
