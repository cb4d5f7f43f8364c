// Package run trains a model in a run folder: config.toml, the records of every step
// (metrics.jsonl, timing.jsonl, TensorBoard events, run.log) and checkpoints, from which a
// later process resumes. It is what octet train does, for a Go program.
//
//	c, err := run.NewConfig("my.toml", "train.steps=100", "recipe=fp8-smooth")
//	r, err := run.Start(ctx, run.Options{Config: c, Dir: "runs/mine", Backend: "emu"})
//	err = r.Train(ctx, func(p run.Progress) { fmt.Println(p.Step, p.Loss) })
//	err = r.Close()
//
// [Start] does everything that can fail because of the user's input, and removes what it
// made if it fails. [Run.Train] runs the steps, calls back after each, writes the records,
// and writes checkpoints while the next steps run. [Run.Close] frees the devices and the
// folder. The program imports the backends that it uses, such as octet/backend/emu.
//
// The configuration says how often Train evaluates and saves, how many checkpoints it
// keeps, and what a loss spike or a full disk does: the keys of the sections train and checkpoint.
//
// [OpenWeights] opens the trained model of a run.
package run

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strings"
	"sync/atomic"
	"time"

	"octet/backend"
	"octet/backend/world"
	"octet/checkpoint"
	"octet/data"
	"octet/internal/config"
	"octet/internal/exporter"
	"octet/internal/hostmem"
	"octet/internal/writers"
	"octet/train"
)

// Options are the options of Start. Config and Dir are needed.
type Options struct {
	// Config is what NewConfig or ConfigOf returned, or a train.Config of the program's own.
	Config train.Config
	Dir    string // the run folder; Start makes it if it is missing
	// Resume resumes the run in Dir from its newest intact checkpoint. Config must then be
	// that of the run, but for Train.Steps. Without Resume, Dir must not hold a run.
	// Resume: Exists(Dir) starts a run or resumes it.
	Resume  bool
	Backend string // name, or name:device, such as "emu" or "cuda:0"; empty picks the best
	Threads int    // of the CPU backend; 0: all processors
	Profile bool   // record some steps: see Profile
	// Compiling is called before devices load programs, which may have to compile; done is
	// called when they are loaded. It may be nil.
	Compiling func() (done func())

	// Reference is called while train.objective = "dpo" measures the log-probabilities of all pairs
	// under the initial weights, with the number of pairs so far. It may be nil.
	Reference func(done, all int64)

	// Group connects the ranks of a run whose ranks are processes: each calls Start, Train and
	// Close. Without it, Start runs all of Config.Train.Ranks in this process, which needs a
	// backend in host memory.
	Group *world.Group
	// Hung is called if the group has ended, but this process waits for its device and does not
	// notice. The program should end then, with the status of the error, a [world.Lost].
	Hung func(*world.Lost)

	// Each value of Save requests a checkpoint of the current step. It may be nil.
	Save <-chan os.Signal

	Version string // of the program, for state.json and the metrics
	// MetricsAddr is the address, HOST:PORT or a port of this machine, that serves
	// Prometheus metrics at /metrics from Start to Close; port 0 is a free one. Empty: none.
	MetricsAddr string
	// Sources is the corpus for a configuration without data.paths, on a machine without a
	// Go installation. It may be nil.
	Sources fs.FS
}

// Run is a training run in progress. Ranks above 0 write no records.
type Run struct {
	Config     train.Config
	Dir        string // the run folder
	Corpus     *data.Corpus
	Note       string // the default corpus that was chosen; empty with data.paths
	Trainer    *train.Trainer
	Device     backend.Backend
	Memory     train.Memory       // of the recipe that needs the most
	Resumed    int                // the step after which the run resumed
	WasResumed bool               // Options.Resume was set, with or without a checkpoint
	Skipped    []checkpoint.Entry // damaged checkpoints that the resume skipped
	Moved      string             // the backend and arithmetic that wrote the checkpoint, if they differ from this run's
	Changed    []string           // keys of config.toml that changed since the checkpoint, as "optimizer.lr 0.003 -> 0.001"
	RateChange *RateChange        // if the run is longer or shorter now; nil: none
	Pairs      data.PairCounts    // of the training data, if this process measured their log-probabilities
	Lengths    data.Lengths       // with data.packing = "documents", of rank 0
	Lost       []string           // missing lines of metrics and timing, a sentence for each file

	folder      *folder
	group       *world.Group
	others      []*Run                         // the other ranks, if they are in this process and this is rank 0
	hung        func(*world.Lost)              // Options.Hung
	log         atomic.Pointer[writers.RunLog] // of records, for watchGroup; nil before they are open
	agreed      agreement
	exporter    *exporter.Exporter // nil without Options.MetricsAddr
	backend     string             // Options.Backend
	options     backend.Options
	version     string
	records     *records
	saver       saver
	loading     time.Duration // time to load the programs, including compilation
	executed    int           // steps of this process, including those before a rewind
	published   published
	telemetry   *telemetry
	utilization utilization
	pace        paceMeter
	stragglers  stragglers       // of rank 0
	profile     *profiler        // nil if not requested, or done
	requests    <-chan os.Signal // Options.Save
}

// Start opens a new run, or resumes one. It fails only for reasons that the user can fix,
// and then leaves no files behind. The error wraps ErrRunExists if Dir holds a run and
// Resume is not set, and checkpoint.ErrLocked if another process uses Dir.
func Start(ctx context.Context, o Options) (*Run, error) {
	if o.Dir == "" {
		return nil, errors.New("Options.Dir is empty: name the folder of the run")
	}
	if o.Config.Network != nil {
		return nil, train.ErrOwnNetwork
	}
	if err := o.Config.Resolve(); err != nil {
		return nil, err
	}
	if err := o.Config.CheckRanks(); err != nil {
		return nil, err
	}
	if o.Group == nil && o.Config.Train.Ranks > 1 {
		return startLocal(ctx, o)
	}
	return start(ctx, o, func() (*data.Corpus, string, error) { return OpenCorpus(ctx, o.Config, o.Sources) })
}

// start is Start of one rank.
func start(ctx context.Context, o Options, corpus openCorpus) (*Run, error) {
	r := &Run{
		Config: o.Config, Dir: o.Dir, WasResumed: o.Resume, group: o.Group, hung: o.Hung, version: o.Version, requests: o.Save,
		backend: o.Backend, options: backend.Options{Threads: o.Threads, Group: o.Group},
	}
	returned := make(chan struct{})
	defer close(returned)
	go r.watchGroup(returned)
	err := r.start(ctx, o, corpus)
	if err == nil {
		return r, nil
	}
	r.fail(ctx, err)
	if lost, ok := errors.AsType[*world.Lost](r.group.Err()); ok && lost.Rank != r.rank() {
		err = lost // not what followed from it
	}
	err = errors.Join(err, r.free())
	switch {
	case r.folder == nil:
		return nil, err
	case o.Resume || r.rank() > 0:
		return nil, errors.Join(err, r.folder.Close())
	}
	return nil, errors.Join(err, r.folder.discard())
}

func (r *Run) start(ctx context.Context, o Options, corpus openCorpus) (err error) {
	if o.MetricsAddr != "" && r.rank() == 0 {
		if r.exporter, err = exporter.Open(o.MetricsAddr, exporter.Build{Version: o.Version, Go: runtime.Version()}); err != nil {
			return err
		}
	}
	o.Dir, err = r.tell(ctx, "the run folder", func() (dir string, err error) {
		if !o.Resume {
			return o.Dir, checkVacant(o.Dir)
		}
		if r.folder, err = resume(o.Dir); err == nil {
			err = checkResumed(o.Dir, o.Config)
		}
		return o.Dir, err
	})
	if r.Dir = o.Dir; err == nil && r.rank() > 0 {
		r.folder = sharedFolder(o.Dir)
	}
	// The folder is made after the text was read and the memory checked: a process that
	// ends before that, even by a kill, leaves no folder.
	var job *train.Job
	if err == nil {
		job, err = r.prepare(ctx, o, corpus)
	}
	if err == nil {
		hostmem.LimitGo()
	}
	if err == nil && !o.Resume && r.rank() == 0 {
		if r.folder, err = create(o.Dir, o.Config); err == nil {
			err = r.folder.recordData(r.Corpus)
		}
	}
	if err == nil {
		err = r.open(ctx, o, job)
	}
	if err == nil {
		err = r.barrier(ctx, "the first step")
	}
	return err
}

// prepare opens the text and the device, checks the memory, and returns the job of the
// first recipe.
func (r *Run) prepare(ctx context.Context, o Options, corpus openCorpus) (job *train.Job, err error) {
	if init := o.Config.Model.Init; init != "" && !o.Resume && !exists(filepath.Join(init, checkpoint.ManifestFile)) {
		if _, err := checkpoint.ReadConfig(init); err != nil {
			return nil, fmt.Errorf("model.init: %w", err)
		}
	}
	if r.Corpus, r.Note, err = corpus(); err != nil {
		return nil, err
	}
	if o.Resume {
		if r.rank() == 0 {
			if err := r.folder.recordData(r.Corpus); err != nil {
				return nil, err
			}
		}
		if r.options.Choices, err = r.folder.choices(); err != nil {
			return nil, err
		}
	}
	if r.Device, err = backend.Open(r.backend, r.options); err != nil {
		return nil, err
	}
	if err := r.group.Compare(ctx, world.Identity{
		{Name: "text", Value: r.Corpus.Info.SHA256}, {Name: "device", Value: r.Device.Spec().Name()},
	}); err != nil {
		return nil, err
	}
	return r.plan()
}

// open creates the trainer, sets its weights and opens the records.
func (r *Run) open(ctx context.Context, o Options, job *train.Job) (err error) {
	r.utilization = utilization{now: time.Now, measure: func() float64 { return r.peakFLOPs(ctx, intervalBursts) }}
	r.utilization.begin()
	r.telemetry = openTelemetry(r.Device)
	done := func() {}
	if o.Compiling != nil && !job.Device.HostMemory {
		done = o.Compiling()
	}
	start := time.Now()
	if err := r.measureRows(); err != nil {
		return err
	}
	r.Trainer, err = train.NewTrainer(job, r.Corpus, r.Device, r.group)
	r.loading = time.Since(start)
	done()
	if err != nil {
		return err
	}
	r.Trainer.Reopen = r.reopen
	if o.Profile && r.rank() == 0 {
		r.profile = &profiler{Profile: backend.NewProfile()}
		r.Trainer.Execute = r.profile.Run
	}
	if err := r.begin(ctx, o.Resume); err != nil {
		return err
	}
	if r.Pairs, err = r.Trainer.MeasureReference(ctx, o.Reference); err != nil {
		return err
	}
	// Steps allocate nothing, so no later collection would free the garbage of the start,
	// such as parameters in FP32.
	debug.FreeOSMemory()
	if err := ctx.Err(); err != nil {
		return err
	}
	if o.Resume { // the length may have changed
		if steps := o.Config.Train.Steps; r.Resumed > steps {
			return fmt.Errorf("train.steps = %d, but the run has done %d already: give more steps", steps, r.Resumed)
		}
	}
	if o.Resume && r.rank() == 0 {
		before, err := ConfigOf(o.Dir)
		if err != nil {
			return err
		}
		r.RateChange = changeOfRate(o.Config.Optimizer, r.Resumed, before.Train.Steps, o.Config.Train.Steps)
		if err := r.folder.writeConfig(o.Config); err != nil {
			return err
		}
	}
	r.saver.last.step = r.Resumed
	if r.saver.copied.Config, err = config.Values(r.Config); err != nil {
		return err
	}
	if tok := r.Corpus.Tokenizer; tok != nil {
		r.saver.copied.Tokenizer = tok.Files
	}
	if r.records, err = r.openRecords(r.Resumed); err != nil {
		return err
	}
	r.Lost = r.records.lost
	r.log.Store(r.records.log)
	r.logStart()
	return nil
}

// MetricsURL returns the URL of the metrics; empty without Options.MetricsAddr.
func (r *Run) MetricsURL() string {
	if r.exporter == nil {
		return ""
	}
	return r.exporter.URL()
}

// Usage returns the memory use of the device; ok says that it is known.
func (r *Run) Usage() (usage backend.Usage, ok bool) {
	counted, ok := r.Device.(backend.UsageReporter)
	if !ok {
		return usage, false
	}
	usage, err := counted.Usage()
	return usage, err == nil
}

// reopen closes the device and opens it again, to free memory for the programs of
// another recipe.
func (r *Run) reopen() (device backend.Backend, err error) {
	if c, ok := r.Device.(backend.Chooser); ok {
		r.options.Choices = c.Choices()
	}
	if err := r.closeDevice(); err != nil {
		return nil, err
	}
	r.Device, err = backend.Open(r.backend, r.options)
	return r.Device, err
}

// logStart writes the start of this process to run.log.
func (r *Run) logStart() {
	log := r.records.log
	log.Info("start", "octet", r.version, "recipe", r.Config.Recipe, "backend", r.Device.Spec().Name(),
		"device", r.Device.Spec().Device, "step", r.Resumed, "steps", r.Config.Train.Steps, "corpus", r.Corpus.Info.SHA256,
		"load_s", r.loading.Seconds())
	if usage, ok := r.Usage(); ok {
		log.Info("device memory", "allocated", usage.Allocated, "outside", usage.Outside(), "total", usage.Total)
	}
	if hint := r.Device.Spec().Hint; hint != "" {
		log.Info("hint", "text", hint)
	}
	r.logNotes()
	if r.Trainer.Converted {
		log.Warn("moments rounded to this device's e4m3")
	}
	if p := r.Pairs; p.Pairs > 0 {
		log.Info("reference measured", "pairs", p.Pairs, "cut", p.Cut, "empty", p.Empty)
	}
	for _, e := range r.Skipped {
		log.Warn("damaged checkpoint skipped", "path", e.Path, "reason", e.Damage.Error())
	}
	for _, lost := range r.Lost {
		log.Warn(lost)
	}
	if len(r.Changed) > 0 {
		log.Warn("configuration changed", "keys", r.Changed)
	}
}

// logNotes writes to run.log the notes on the current recipe, see [train.Job.Notes].
func (r *Run) logNotes() {
	for _, note := range r.Trainer.Notes {
		r.records.log.Info("recipe on this device", "note", note)
	}
}

// plan returns the job of the first recipe. It computes the memory of the largest recipe
// and checks that the host has it.
func (r *Run) plan() (first *train.Job, err error) {
	spec := r.Device.Spec()
	largest, _, memory, err := train.LargestJob(r.Config, spec)
	if err != nil {
		return nil, err
	}
	r.Memory, first = memory, largest
	if largest.Phase > 0 {
		if first, err = train.NewJob(r.Config, spec); err != nil {
			return nil, err
		}
	}
	// Text in memory is allocated already, so the free memory accounts for it.
	if !spec.HostMemory {
		return first, hostmem.Check("the host copy of a checkpoint", memory.Snapshot, "use a smaller model, or a machine with more host memory")
	}
	ranks := int64(1)
	if r.group.InProcess() {
		ranks = int64(r.group.Size())
	}
	return first, hostmem.Check("the run", ranks*(memory.Total()+memory.Snapshot), hostmem.SmallerRun)
}

// begin sets the weights from the newest intact checkpoint, from model.init, or from the
// seed.
func (r *Run) begin(ctx context.Context, resume bool) error {
	if resume {
		c, err := r.openSame(ctx, "the checkpoint to resume", func() (c *checkpoint.Checkpoint, err error) {
			c, r.Skipped, err = checkpoint.Newest(r.folder.checkpoints())
			return c, err
		})
		if err == nil {
			return errors.Join(r.restore(ctx, c), c.Close())
		}
		if !errors.Is(err, checkpoint.ErrNone) {
			return err
		}
		if skipped := r.Skipped; len(skipped) > 0 { // starting at step 0 would truncate all records
			return fmt.Errorf("all checkpoints of the run are damaged, the newest: %w; start a new run in another folder, or remove %s and %s to restart this run at step 0, which loses the records of its steps", skipped[0].Damage, r.folder.checkpoints(), r.folder.path(logFile))
		}
		if err := r.folder.checkNoneSaved(); err != nil {
			return err
		}
	}
	if r.Config.Model.Init != "" {
		if err := r.checkInitTokenizer(); err != nil {
			return err
		}
		return r.Trainer.InitFrom(ctx, r.Config.Model.Init)
	}
	return r.Trainer.Init(ctx)
}

// restore restores a checkpoint and records what changed since it was written.
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
	if state.Backend != r.Device.Spec().Name() {
		r.Moved = state.Backend
	}
	return nil
}

// Close closes the records, the corpus and the device, and unlocks the folder.
func (r *Run) Close() error {
	errs := []error{r.leaveLocal()}
	for _, o := range append(r.others, r) {
		errs = append(errs, o.records.close(), o.free(), o.folder.Close())
	}
	return errors.Join(errs...)
}

// free closes the corpus, the telemetry, the device and the exporter.
func (r *Run) free() error {
	var errs []error
	if r.Corpus != nil && (r.rank() == 0 || !r.group.InProcess()) {
		errs = append(errs, r.Corpus.Close())
	}
	if r.telemetry != nil {
		errs = append(errs, r.telemetry.close())
	}
	return errors.Join(append(errs, r.closeDevice(), r.exporter.Close())...)
}

// ReleaseDevice closes the device, so that others can be opened. The run can then neither
// train nor save.
func (r *Run) ReleaseDevice() error {
	var errs []error
	for _, o := range append(r.others, r) {
		errs = append(errs, o.closeDevice())
	}
	return errors.Join(errs...)
}

func (r *Run) closeDevice() (err error) {
	if r.Device != nil {
		err = r.Device.Close()
	}
	r.Device = nil
	return err
}
