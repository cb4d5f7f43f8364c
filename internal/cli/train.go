package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"octet/backend"
	"octet/backend/world"
	"octet/checkpoint"
	"octet/internal/config"
	"octet/internal/writers"
	"octet/run"
	"octet/train"
)

type trainCmd struct {
	Args        []string `arg:"" optional:"" name:"config.toml | key=value" sep:"none" help:"A configuration file and single keys, such as train.steps=1000."`
	Out         string   `placeholder:"DIR" help:"The run's folder, new or empty unless --resume is given; default: runs/<date>-<recipe>."`
	Resume      resume   `help:"Resume the run in --out from its newest intact checkpoint. --resume=auto starts a new run if there is none, so that a scheduler can repeat the command."`
	DryRun      bool     `help:"Print the resolved configuration and stop."`
	JSON        bool     `help:"Print the result as one JSON object, without a sample."`
	MetricsAddr string   `placeholder:"HOST:PORT" help:"Serve Prometheus metrics at /metrics; a port alone listens on this machine only."`
	Rendezvous  string   `placeholder:"HOST:PORT" help:"Where rank 0 listens for the other ranks, if a launcher starts them; default: the launcher's address."`
	Profile     bool     `help:"Profile up to 5 steps op by op: print the time of each op and write trace.json into the run's folder."`
	config.Flags
	device
}

// Help returns the text that train --help adds.
func (trainCmd) Help() string {
	return `The file overrides the defaults, and the command line overrides the file. --dry-run prints every key with its value. Paths are relative to the current folder; a run's config.toml holds absolute ones. Without --data, octet trains on the source of the Go installation. Ctrl-C saves a checkpoint and stops.

Examples:
  octet train                                  the embedded default
  octet train --data book.txt model.layers=4   your own text, a deeper model
  octet train --recipe bf16 --steps 1000       the baseline of the FP8 recipes
  octet train --resume --out runs/mine         resume a stopped run
  octet train --resume=auto --out runs/mine    resume a run, or start it
  octet train --metrics-addr 9100              metrics for Prometheus
  octet train --profile                        the time of each op in a step
  octet train runs/mine/config.toml            repeat a run
  octet train --ranks 8 --backend cuda         eight GPUs of this machine
  srun octet train --backend cuda              ranks of a launcher`
}

func (c trainCmd) Run(ctx context.Context, t *terminal) (err error) {
	m := &member{t: t}
	if m.place, err = findPlace(c.Rendezvous); err != nil {
		return badInput(err)
	}
	o, err := c.options(t, m.place)
	if err == nil {
		err = o.Config.CheckRanks()
	}
	if err != nil && m.several() {
		err = fmt.Errorf("rank %d: %w", m.place.Rank, err) // the others do not know it yet
	}
	if err != nil {
		return badInput(err)
	}
	if c.DryRun {
		return printConfig(m.quiet().out, o)
	}
	if !m.several() {
		supervised, err := needsProcesses(o)
		if err != nil {
			return badInput(err)
		}
		if supervised {
			return t.supervise(o.Config.Train.Ranks)
		}
	}
	return m.ended(c.run(ctx, m, o))
}

// printConfig checks a configuration and prints it.
func printConfig(w io.Writer, o run.Options) error {
	spec, err := backend.SpecOf(o.Backend)
	if err == nil {
		_, err = train.NewJob(o.Config, spec)
	}
	if err != nil {
		return badInput(err)
	}
	text, err := config.Marshal(o.Config)
	if err != nil {
		return badInput(err)
	}
	_, err = io.WriteString(w, wrapComments(string(text), columnsOf(w)))
	return err
}

// run trains the rank of this process, or all ranks.
func (c trainCmd) run(ctx context.Context, m *member, o run.Options) error {
	t := m.quiet()
	status := writers.NewStatusLine(t.err)
	signals := catchSignals(ctx, m.repeats(), func(number int) {
		status.Print("octet: stopping; a second signal quits without saving")
		m.interrupted(number)
	})
	defer signals.stop()
	o.Save = signals.save
	start := time.Now()
	unnamed := c.Out == ""
	err := m.join(signals.ctx, &o, unnamed)
	var r *run.Run
	if err == nil {
		r, err = c.start(signals.ctx, t, o, unnamed && !m.several())
	}
	if s := signals.received(); s != 0 && err != nil && m.lost(nil) == nil {
		t.printStoppedEarly()
		return stopped{128 + s}
	}
	if errors.Is(err, run.ErrRunExists) {
		err = fmt.Errorf("%w: name another folder with --out, or resume the run with --resume", err)
	}
	if err != nil {
		return badInput(err)
	}
	m.starting.Store(nil)
	if m.place.Rank > 0 {
		return t.closed(m.train(signals.ctx, r, signals), r.Close())
	}
	return t.closed(c.train(t, m, r, status, signals, start), r.Close())
}

// printStoppedEarly prints that a signal stopped the run before its first step.
func (t *terminal) printStoppedEarly() {
	fmt.Fprintln(t.err, "octet: stopped before the first step; nothing was changed")
}

// closed joins the error of closing to the command's error. If the command's error only
// carries a status, closed prints the other one, since status would not.
func (t *terminal) closed(err, closing error) error {
	if _, ok := errors.AsType[stopped](err); ok && closing != nil {
		fmt.Fprintf(prose(t.err), "octet: %v\n", closing)
	}
	return errors.Join(err, closing)
}

// options reads the command line, or the configuration of the run to resume.
func (c trainCmd) options(t *terminal, p world.Place) (o run.Options, err error) {
	o = run.Options{Dir: c.Out, Backend: c.Backend, Threads: c.Threads, Profile: c.Profile, MetricsAddr: c.MetricsAddr, Version: version(), Sources: t.sources}
	if err := c.check(); err != nil {
		return o, err
	}
	args, err := configArgs(c.Args, c.Flags)
	if err != nil {
		return o, err
	}
	if c.Resume != resumeNever {
		if c.Out == "" {
			return o, fmt.Errorf("%v needs --out RUN, the folder of the run to resume", c.Resume)
		}
		if args.File == string(resumeAuto) {
			return o, errors.New("--resume auto is two arguments: write --resume=auto")
		}
		if c.Resume == resumeAuto {
			o.Config, o.Resume, err = autoConfig(c.Out, args, p)
			return o, err
		}
		o.Resume = true
		o.Config, err = resumedConfig(c.Out, args, p)
		return o, err
	}
	loaded, err := config.New(args)
	if err != nil {
		return o, err
	}
	if o.Config, err = withRanks(loaded, args.File, p); err != nil {
		return o, err
	}
	if o.Dir == "" {
		o.Dir = filepath.Join("runs", time.Now().Format("2006-01-02-150405")+"-"+o.Config.Recipe)
	}
	return o, nil
}

// announceAfter is how long the first line waits for an error of the start. Most input
// errors show within that time, and are then the only output. The line must come within a
// second.
const announceAfter = 700 * time.Millisecond

// start opens the run and prints the first line: the backend and why it was chosen. With
// numbered, it appends a number to the name of a folder that another run took.
func (c trainCmd) start(ctx context.Context, t *terminal, o run.Options, numbered bool) (*run.Run, error) {
	driver, device, err := backend.Find(o.Backend)
	if err != nil {
		return nil, err
	}
	announce := sync.OnceFunc(func() {
		fmt.Fprintf(prose(t.err), "octet: training on %s (%s). Ctrl-C saves.\n", backendName(driver.Name, device), t.backendReason(o.Backend, driver))
	})
	o.Compiling = func() func() {
		timer := time.AfterFunc(compileNoticeAfter, func() {
			announce()
			printCompiling(t.err)
		})
		return func() { timer.Stop() }
	}
	var measured *progress
	var begin sync.Once
	o.Reference = func(done, all int64) {
		begin.Do(func() {
			announce()
			measured = t.startProgress(all, "pairs")
		})
		measured.set(done, nil)
	}
	timer := time.AfterFunc(announceAfter, announce)
	r, err := startNumbered(ctx, o, numbered)
	if measured != nil {
		measured.close()
	}
	if !timer.Stop() || err == nil {
		announce()
	}
	return r, err
}

// startNumbered starts a run. With numbered, it appends a number to the name of the folder if
// another run of the same second took the default name.
func startNumbered(ctx context.Context, o run.Options, numbered bool) (*run.Run, error) {
	name := o.Dir
	for n := 2; ; n++ {
		r, err := run.Start(ctx, o)
		if !numbered || !errors.Is(err, run.ErrRunExists) && !errors.Is(err, checkpoint.ErrLocked) {
			return r, err
		}
		o.Dir = fmt.Sprintf("%s-%d", name, n)
	}
}

// backendName returns a backend as --backend takes it: "emu", or "emu:h100".
func backendName(name, device string) string {
	if device == "" {
		return name
	}
	return name + ":" + device
}

// backendReason says why a backend is used. The reason why a better backend of this binary
// is absent may be long, so the text refers to octet doctor.
func (t *terminal) backendReason(name string, chosen backend.Driver) string {
	if name != "" {
		return "by --backend"
	}
	var absent []string
	doctor := ""
	for _, d := range backend.Drivers() {
		if d.Priority > chosen.Priority {
			absent = append(absent, "no "+d.Name)
			if !errors.Is(d.Available(""), backend.ErrNotBuilt) {
				doctor = fmt.Sprintf("; %s doctor says why", shellQuote(t.name))
			}
		}
	}
	if len(absent) == 0 {
		return "the best backend"
	}
	return strings.Join(absent, ", ") + doctor
}

func (c trainCmd) train(t *terminal, m *member, r *run.Run, status *writers.StatusLine, signals *signals, start time.Time) error {
	var header bytes.Buffer
	if err := printHeader(&header, r, writers.Columns(t.err)); err != nil {
		return err
	}
	_, _ = t.err.Write(header.Bytes()) // a closed output does not stop a run: see signals
	var last run.Progress
	steps, skipped := 0, 0
	trainErr := r.Train(signals.ctx, func(p run.Progress) {
		last = p
		steps++
		status.Show(statusOf(p, r))
		if p.Recipe != "" {
			status.Print(fmt.Sprintf("step %d: the recipe is now %s", p.Step, p.Recipe))
		}
		if p.SensorError != nil {
			status.Print(fmt.Sprintf("step %d: %v; training continues without telemetry (%s doctor shows why)", p.Step, p.SensorError, shellQuote(t.name)))
		}
		for _, s := range p.Stragglers {
			status.Print(stragglerText(p.Step, s))
		}
		if p.Requested {
			status.Print(fmt.Sprintf("step %d: writing the checkpoint that SIGUSR1 requested, while training continues", p.Step))
		}
		if p.Skipped {
			skipped++
			status.Print(fmt.Sprintf("step %d: update skipped: the gradient norm or an amax is not finite", p.Step))
		}
		if p.Spike.Begin > 0 {
			status.Print(spikeText(p, r))
		}
		if p.SaveError != nil {
			status.Print(fmt.Sprintf("step %d: %v; training continues and tries again at the next checkpoint", p.Step, p.SaveError))
		}
		for _, alarm := range p.Health.Alarms {
			status.Print(fmt.Sprintf("step %d: %s", p.Step, alarm))
		}
		if p.Evaluated && p.Step < p.Steps {
			status.Print(fmt.Sprintf("step %d: validation %s", p.Step, lossText(p, r)))
		}
		if p.Profile != nil {
			to := t.out
			if c.JSON { // standard output holds one object only
				to = t.err
			}
			status.PrintTo(to, profileText(p.Profile, r))
		}
	})
	status.Done()
	caught, trainErr := m.finish(r, signals.received(), trainErr)
	if trainErr != nil {
		if errors.Is(trainErr, run.ErrResumable) {
			trainErr = fmt.Errorf("%w with %s train --resume --out %s", trainErr, shellQuote(t.name), shellQuote(r.Dir))
		}
		return trainErr
	}
	if caught != 0 && last.Step > 0 {
		printStopped(t, r, last)
		return stopped{128 + caught}
	}
	elapsed := time.Since(start)
	out := &stdout{to: t.out}
	var err error
	if c.JSON {
		err = printResult(out, r, last, skipped, elapsed)
	} else {
		on := *t
		on.out = out
		err = printSummary(signals.ctx, &on, c.device, r, last, elapsed)
	}
	if s := signals.received(); s != 0 && errors.Is(err, context.Canceled) {
		return stopped{128 + s}
	}
	if out.err != nil {
		cause := out.err
		if path, ok := errors.AsType[*fs.PathError](cause); ok { // the path is not one that the user named
			cause = path.Err
		}
		return fmt.Errorf("the run is done and saved in %s; its result could not be written: %w", r.Dir, cause)
	}
	if err == nil && steps > 0 && skipped == steps {
		err = fmt.Errorf("none of the %d steps made an update, since no loss or gradient was finite: lower optimizer.lr, or check the initial weights with octet inspect", steps)
	}
	return err
}

// stragglerText names a slow rank.
func stragglerText(step int, s run.Straggler) string {
	where := ""
	if s.Host != "" {
		where = " on " + s.Host
	}
	return fmt.Sprintf("step %d: rank %d%s is slow: its own time is %.4g s a step, the median of all ranks %.4g s; all ranks wait for it, so check its device and its machine",
		step, s.Rank, where, s.Own.Seconds(), s.Median.Seconds())
}

// spikeText says how far the loss rose, and whether the run rewinds.
func spikeText(p run.Progress, r *run.Run) string {
	text := fmt.Sprintf("step %d: the loss is %.4f, ", p.Step, p.Loss)
	if p.Spike.Std > 0 {
		text += fmt.Sprintf("%.4f ± %.4f before; ", p.Spike.Mean, p.Spike.Std)
	}
	text += fmt.Sprintf("a spike since step %d", p.Spike.Begin)
	switch {
	case p.Rewound:
		return text + fmt.Sprintf("; rewinding to step %d and skipping the data since", r.Trainer.StepsDone())
	case r.Config.Train.OnSpike == "rewind":
		return text + "; no checkpoint is older, so training continues"
	}
	return text
}

func statusOf(p run.Progress, r *run.Run) writers.Status {
	mfu, flops := r.MFU()
	rate := flops / r.Trainer.FLOPsPerToken() // of the same steps as mfu
	if mfu == nil {
		rate = float64(r.Trainer.TokensPerStep()) / p.Elapsed.Seconds()
	}
	s := writers.Status{
		Step: p.Step, Steps: p.Steps, Loss: p.Loss, GradNorm: p.GradNorm, LR: p.LR,
		TokensPerSec: rate, FlopsPerSec: rate * r.Trainer.FLOPsPerToken(),
		Memory: r.Memory.Total() * int64(r.Config.Train.Ranks),
		MFU:    mfu,
		ETA:    p.ETA,
	}
	if p.Preference.Pairs > 0 {
		s.Accuracy = new(p.Preference.Accuracy)
	}
	if p.Devices != nil {
		s.Utilization = fold(p.Devices, func(d backend.Reading) *float64 { return d.Utilization }, math.Min)
		s.Power = fold(p.Devices, func(d backend.Reading) *float64 { return d.Power }, func(a, b float64) float64 { return a + b })
		s.Temperature = fold(p.Devices, func(d backend.Reading) *float64 { return d.Temperature }, math.Max)
	}
	return s
}

// fold combines a reading of all devices into one value; nil if a device lacks it.
func fold(devices []backend.Reading, of func(backend.Reading) *float64, join func(a, b float64) float64) *float64 {
	all := of(devices[0])
	for _, d := range devices[1:] {
		x := of(d)
		if all == nil || x == nil {
			return nil
		}
		all = new(join(*all, *x))
	}
	return all
}

// configArgs separates the configuration file from the key=value settings.
func configArgs(args []string, flags config.Flags) (config.Args, error) {
	file, assignments, err := config.SplitArgs(args)
	return config.Args{File: file, Assignments: assignments, Flags: flags}, err
}
