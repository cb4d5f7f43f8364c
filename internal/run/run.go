// Package run is a training run with its folder: it ties the trainer to
// config.toml, data.json, the records and the checkpoints, and resumes them. It
// also opens what a run left behind, as [Weights].
//
// A [Run] goes through three calls. [Start] does everything that can fail
// because of the user's input and leaves nothing behind if it does. [Run.Train]
// runs the steps, writes the records and, beside the steps, the checkpoints, and tells
// a callback. [Run.Close] frees the devices and the folder.
package run

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"runtime/debug"
	"strings"
	"sync/atomic"
	"time"

	"octet/backend"
	"octet/checkpoint"
	"octet/data"
	"octet/internal/config"
	"octet/internal/exporter"
	"octet/internal/writers"
	"octet/train"
)

// Options is what a run is started with.
type Options struct {
	Config  train.Config // resolved; of a resumed run, the one in its folder
	Dir     string
	Resume  bool
	Backend string // name:device, as given; empty picks the best
	Threads int
	Profile bool // record some steps: see Profile
	// Expect is told how long the run will take, roughly, where that is known before
	// it begins: when Start has made sure of all that is quickly checked. It may be nil.
	Expect func(time.Duration)
	// Compiling is told that devices are given programs which they may have to compile,
	// and what it returns that they have them. It may be nil.
	Compiling func() (done func())

	// Save asks for a checkpoint of the step under way by each value, as a signal does.
	// It may be nil.
	Save <-chan os.Signal

	Version string // of octet, for state.json
	// Exporter is told of every step. It may be nil.
	Exporter *exporter.Exporter
	Sources  fs.FS // corpus of last resort
}

// Run is a run under way.
type Run struct {
	Config     train.Config
	Folder     *Folder
	Corpus     *data.Corpus
	Note       string // which corpus, where nobody named one
	Trainer    *train.Trainer
	Devices    []backend.Backend
	Memory     train.Memory       // under the recipe that takes most
	Resumed    int                // step that the run goes on from
	WasResumed bool               // it was asked to resume, whether there was a checkpoint or not
	Skipped    []checkpoint.Entry // damaged checkpoints that were passed over
	Moved      string             // the backend and arithmetic that wrote the checkpoint, if others
	Changed    []string           // keys of config.toml that had other values when it was written: see config.Changes
	Rise       *Rise              // of the learning rate, where the run is longer than it was; nil: none
	Exporter   *exporter.Exporter // nil: nobody asked
	Lost       []string           // lines of metrics and timing that a whole run would have, a sentence for each file

	backend     string // as given
	options     backend.Options
	version     string
	records     *records
	log         atomic.Pointer[writers.RunLog] // of records, for logExit; nil before there are any
	saver       saver
	loading     time.Duration // of the programs, with what had to be compiled of them
	executed    int           // steps of this process, those before a rewind included
	published   published
	telemetry   *telemetry
	utilization utilization
	profile     *profiler        // nil: not asked for, or done
	requests    <-chan os.Signal // of checkpoints: see Options.Save
}

// Start opens everything. Its errors are the user's to mend; nothing is left
// behind then.
func Start(ctx context.Context, o Options) (*Run, error) {
	r := &Run{
		Config: o.Config, WasResumed: o.Resume, version: o.Version, Exporter: o.Exporter, requests: o.Save,
		backend: o.Backend, options: backend.Options{Threads: o.Threads, Ranks: o.Config.Train.Ranks},
	}
	r.options.BeforeExit = r.logExit
	var err error
	if o.Resume {
		r.Folder, err = Resume(o.Dir)
	} else {
		err = checkVacant(o.Dir)
	}
	if err != nil {
		return nil, err
	}
	// A new folder is made when the text was read and the memory suffices: a process that
	// ends before, however it ends, leaves none.
	job, err := r.prepare(ctx, o)
	if err == nil {
		LimitGoMemory()
	}
	if err == nil && !o.Resume {
		if r.Folder, err = Create(o.Dir, o.Config); err == nil {
			err = r.Folder.recordData(r.Corpus.Info)
		}
	}
	if err == nil {
		err = r.open(ctx, o, job)
	}
	if err == nil {
		return r, nil
	}
	err = errors.Join(err, r.free())
	switch {
	case r.Folder == nil:
		return nil, err
	case o.Resume:
		return nil, errors.Join(err, r.Folder.Close())
	}
	return nil, errors.Join(err, r.Folder.Discard())
}

// prepare opens the text and the devices, and returns the job of the first recipe, for
// which there is memory.
func (r *Run) prepare(ctx context.Context, o Options) (job *train.Job, err error) {
	if r.Corpus, r.Note, err = OpenCorpus(ctx, o.Config, o.Sources); err != nil {
		return nil, err
	}
	if o.Resume {
		if err := r.Folder.recordData(r.Corpus.Info); err != nil {
			return nil, err
		}
		if r.options.Choices, err = r.Folder.choices(); err != nil {
			return nil, err
		}
	}
	if r.Devices, err = backend.Open(r.backend, r.options); err != nil {
		return nil, err
	}
	return r.plan()
}

// open makes all that the run needs beside its folder and what prepare opened.
func (r *Run) open(ctx context.Context, o Options, job *train.Job) (err error) {
	if o.Expect != nil {
		// Nobody stops a run because it cannot be told how long it takes.
		if d, ok, err := r.estimate(ctx, job); ok && err == nil {
			o.Expect(d)
		}
	}
	r.utilization = utilization{now: time.Now, measure: func() float64 { return peakFLOPs(r.Devices, intervalBursts) }}
	r.utilization.begin()
	r.telemetry = openTelemetry(r.Devices)
	done := func() {}
	if o.Compiling != nil && !job.Device.HostMemory {
		done = o.Compiling()
	}
	start := time.Now()
	r.Trainer, err = train.NewTrainer(job, r.Corpus, r.Devices)
	r.loading = time.Since(start)
	done()
	if err != nil {
		return err
	}
	r.Trainer.Reopen = r.reopen
	if o.Profile {
		r.profile = &profiler{Profile: backend.NewProfile()}
		r.Trainer.Execute = r.profile.Run
	}
	if err := r.begin(ctx, o.Resume); err != nil {
		return err
	}
	// Steps make no garbage, so nothing would collect what came before them: the miniature
	// of estimate, parameters in FP32.
	debug.FreeOSMemory()
	if err := ctx.Err(); err != nil {
		return err
	}
	if o.Resume { // it may have another length now
		if steps := o.Config.Train.Steps; r.Resumed > steps {
			return fmt.Errorf("train.steps = %d, but the run has done %d already: give more steps", steps, r.Resumed)
		}
		before, err := ResumedConfig(o.Dir, config.Args{})
		if err != nil {
			return err
		}
		r.Rise = riseOfRate(o.Config.Optimizer, r.Resumed, before.Train.Steps, o.Config.Train.Steps)
		if err := r.Folder.writeConfig(o.Config); err != nil {
			return err
		}
	}
	r.saver.last.step = r.Resumed
	if r.saver.copied.Config, err = config.Values(r.Config); err != nil {
		return err
	}
	if r.records, err = openRecords(o.Dir, r.Resumed); err != nil {
		return err
	}
	r.Lost = r.records.lost
	r.log.Store(r.records.log)
	r.logStart()
	return nil
}

// Passes is how often the whole run reads its text.
func (r *Run) Passes() float64 {
	return float64(r.Config.Train.Steps) * float64(r.Trainer.TokensPerStep()) / float64(r.Corpus.Info.TrainTokens)
}

// Usage is how the memory of the first device is used, where that is known.
func (r *Run) Usage() (usage backend.Usage, ok bool) {
	counted, ok := r.Devices[0].(backend.Counted)
	if !ok {
		return usage, false
	}
	usage, err := counted.Usage()
	return usage, err == nil
}

// reopen makes room for the programs of another recipe.
func (r *Run) reopen() (devices []backend.Backend, err error) {
	if c, ok := r.Devices[0].(backend.Chooser); ok {
		r.options.Choices = c.Choices()
	}
	if err := r.ReleaseDevices(); err != nil {
		return nil, err
	}
	r.Devices, err = backend.Open(r.backend, r.options)
	return r.Devices, err
}

// logStart tells run.log what goes on from here.
func (r *Run) logStart() {
	log := r.records.log
	log.Info("start", "octet", r.version, "recipe", r.Config.Recipe, "backend", r.backendName(),
		"device", r.Devices[0].Spec().Device, "step", r.Resumed, "steps", r.Config.Train.Steps, "corpus", r.Corpus.Info.SHA256,
		"load_s", r.loading.Seconds())
	if usage, ok := r.Usage(); ok {
		log.Info("device memory", "allocated", usage.Allocated, "outside", usage.Outside(), "total", usage.Total)
	}
	if hint := r.Devices[0].Spec().Hint; hint != "" {
		log.Info("hint", "text", hint)
	}
	r.logNotes()
	if r.Trainer.Converted {
		log.Warn("moments rounded to this device's e4m3")
	}
	for _, e := range r.Skipped {
		log.Warn("checkpoint passed over", "path", e.Path, "reason", e.Damage.Error())
	}
	for _, lost := range r.Lost {
		log.Warn(lost)
	}
	if len(r.Changed) > 0 {
		log.Warn("configuration changed", "keys", r.Changed)
	}
}

// logExit tells run.log why a backend ends the process, from whatever goroutine.
func (r *Run) logExit(reason error) {
	if log := r.log.Load(); log != nil {
		log.Error("stopped", "error", reason.Error())
	}
}

// logNotes tells run.log what the device made of the recipe under way.
func (r *Run) logNotes() {
	for _, note := range r.Trainer.Notes {
		r.records.log.Info("recipe on this device", "note", note)
	}
}

// plan records the job of the first recipe, and works out the memory of all, and
// whether there is so much.
func (r *Run) plan() (first *train.Job, err error) {
	spec := r.Devices[0].Spec()
	driver, _, err := backend.Find(spec.Backend)
	if err != nil {
		return nil, err
	}
	largest, _, memory, err := train.LargestJob(r.Config, driver, spec)
	if err != nil {
		return nil, err
	}
	r.Memory, first = memory, largest
	if largest.Phase > 0 {
		if first, err = train.NewJob(r.Config, spec); err != nil {
			return nil, err
		}
	}
	// Text that is held in memory is there already, and what is free is less by it.
	if !spec.HostMemory {
		return first, CheckHostMemory("the copy that a checkpoint is written from", memory.Snapshot, "use a smaller model, or a machine with more memory beside its devices")
	}
	return first, CheckHostMemory("the run", memory.Total()*int64(len(r.Devices))+memory.Snapshot, SmallerRun)
}

// begin sets the weights: from the newest whole checkpoint, from model.init,
// or from the seed.
func (r *Run) begin(ctx context.Context, resume bool) error {
	if resume {
		c, skipped, err := checkpoint.Newest(r.Folder.Checkpoints())
		r.Skipped = skipped
		if err == nil {
			return errors.Join(r.restore(ctx, c), c.Close())
		}
		if !errors.Is(err, checkpoint.ErrNone) {
			return err
		}
		if len(skipped) > 0 { // to begin at step 0 would cut the records of all that was done
			return fmt.Errorf("no checkpoint of the run is whole; the newest is damaged: %w; start anew with another --out, or remove %s and %s to begin this run again at step 0, which loses the records of its steps", skipped[0].Damage, r.Folder.Checkpoints(), r.Folder.path(logFile))
		}
		if err := r.Folder.checkNoneSaved(); err != nil {
			return err
		}
	}
	if r.Config.Model.Init != "" {
		return r.Trainer.InitFrom(ctx, r.Config.Model.Init)
	}
	return r.Trainer.Init(ctx)
}

// restore goes on from a checkpoint, and finds what is not as it was.
func (r *Run) restore(ctx context.Context, c *checkpoint.Checkpoint) error {
	state, err := train.ReadState(c)
	if err != nil {
		return err
	}
	if r.Changed, err = config.Changes(state.Config, r.Config); err != nil {
		return err
	}
	if err := r.Trainer.Restore(ctx, c); err != nil {
		if len(r.Changed) > 0 {
			err = fmt.Errorf("%w (changed in %s since: %s)", err, configFile, strings.Join(r.Changed, ", "))
		}
		return err
	}
	r.Resumed = r.Trainer.StepsDone()
	if state.Backend != r.backendName() {
		r.Moved = state.Backend
	}
	return nil
}

// backendName is what must be the same for a run to repeat bit for bit: the
// backend, and what decides its last bits.
func (r *Run) backendName() string {
	spec := r.Devices[0].Spec()
	if spec.Arithmetic == "" {
		return spec.Backend
	}
	return spec.Backend + ", " + spec.Arithmetic
}

// Close frees everything.
func (r *Run) Close() error {
	return errors.Join(r.records.close(), r.free(), r.Folder.Close())
}

// free closes what Start opened beside the folder.
func (r *Run) free() error {
	var errs []error
	if r.Corpus != nil {
		errs = append(errs, r.Corpus.Close())
	}
	if r.telemetry != nil {
		errs = append(errs, r.telemetry.close())
	}
	return errors.Join(append(errs, closeAll(r.Devices))...)
}

// ReleaseDevices frees the devices alone, for others to be opened: nothing can be
// trained or saved any more.
func (r *Run) ReleaseDevices() error {
	err := closeAll(r.Devices)
	r.Devices = nil
	return err
}

// closeAll closes backends and joins their errors.
func closeAll(devices []backend.Backend) error {
	var errs []error
	for _, d := range devices {
		errs = append(errs, d.Close())
	}
	return errors.Join(errs...)
}
