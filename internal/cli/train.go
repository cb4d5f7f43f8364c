package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"syscall"
	"text/tabwriter"
	"time"

	"octet/data"
	"octet/infer"
	"octet/internal/config"
	"octet/internal/run"
	"octet/internal/writers"
	"octet/train"
)

type trainCmd struct {
	Args   []string `arg:"" optional:"" name:"config.toml key=value" sep:"none" help:"A configuration file and single keys, such as train.steps=1000."`
	Out    string   `placeholder:"DIR" help:"The run's folder; runs/<date>-<recipe> if not given."`
	Resume bool     `help:"Go on with the run in --out from its newest whole checkpoint."`
	DryRun bool     `help:"Print the resolved configuration and stop."`
	config.Flags
	device
}

func (c trainCmd) Run(ctx context.Context, t *terminal) error {
	cfg, err := c.load()
	if err != nil {
		return badInput(err)
	}
	if c.DryRun {
		text, err := config.Marshal(cfg)
		if err != nil {
			return err
		}
		_, err = t.out.Write(text)
		return err
	}
	signals := catchSignals(ctx)
	defer signals.stop()
	start := time.Now()
	fmt.Fprintf(t.err, "octet: training %s with %s, %d steps. Ctrl-C saves and stops.\n", cfg.Model.Preset, cfg.Recipe, cfg.Train.Steps)
	out := c.Out
	if out == "" {
		out = filepath.Join("runs", start.Format("2006-01-02-150405")+"-"+cfg.Recipe)
	}
	r, err := run.Start(signals.ctx, run.Options{
		Config: cfg, Dir: out, Resume: c.Resume, Backend: c.Backend, Threads: c.Threads,
		Version: version(), Sources: t.sources,
	})
	if err != nil {
		return badInput(err)
	}
	err = c.train(t, r, signals, start)
	return errors.Join(err, r.Close())
}

// load reads the configuration: the command line's, or that of the run to resume.
func (c trainCmd) load() (train.Config, error) {
	if !c.Resume {
		loaded, err := loadConfig(c.Args, c.Flags)
		if err != nil {
			return train.Config{}, err
		}
		return loaded.Config, nil
	}
	if c.Out == "" {
		return train.Config{}, errors.New("--resume needs --out RUN, the folder of the run to go on with")
	}
	file, assignments, err := config.SplitArgs(c.Args)
	if err != nil {
		return train.Config{}, err
	}
	if file != "" {
		return train.Config{}, fmt.Errorf("%s was given with --resume: a resumed run takes the config.toml of its own folder", file)
	}
	return run.LoadConfig(c.Out, c.Flags, assignments)
}

func (c trainCmd) train(t *terminal, r *run.Run, signals *signals, start time.Time) error {
	if err := printHeader(t.err, r); err != nil {
		return err
	}
	status := writers.NewStatusLine(os.Stderr)
	var last run.Progress
	trainErr := r.Train(signals.ctx, func(p run.Progress) {
		last = p
		status.Show(statusOf(p, r))
		if !math.IsNaN(p.ValLoss) && p.Step < p.Steps {
			status.Print(fmt.Sprintf("step %d: validation %s", p.Step, lossText(p.ValLoss, r)))
		}
		if p.Skipped {
			status.Print(fmt.Sprintf("step %d: skipped, something was not finite", p.Step))
		}
	})
	status.Done()
	if trainErr != nil {
		if s := signals.received(); s != 0 && errors.Is(trainErr, context.Canceled) {
			fmt.Fprintf(t.err, "octet: stopped after step %d, saved %s\nGo on: %s train --resume --out %s\n", last.Step, last.Checkpoint, t.name, r.Folder.Dir)
			return stopped{128 + int(s)}
		}
		return trainErr
	}
	return printSummary(signals.ctx, t, c, r, last, time.Since(start))
}

func statusOf(p run.Progress, r *run.Run) writers.Status {
	tokens := float64(r.Job.TokensPerStep())
	seconds := p.Elapsed.Seconds()
	return writers.Status{
		Step: p.Step, Steps: p.Steps, Loss: p.Loss, GradNorm: p.GradNorm, LR: p.LR,
		TokensPerSec: tokens / seconds, FlopsPerSec: tokens * r.Job.FLOPsPerToken() / seconds,
		Memory: r.Memory.Total() * int64(len(r.Devices)),
		ETA:    time.Duration(p.Steps-p.Step) * p.Elapsed,
	}
}

// lossText is a validation loss in the units that the vocabulary has.
func lossText(nats float64, r *run.Run) string {
	s := fmt.Sprintf("%.4f nats", nats)
	if r.Config.Model.Vocab == data.TextVocab {
		s += fmt.Sprintf(", %.4f bits per byte", nats/math.Ln2)
	}
	return s
}

func printHeader(w io.Writer, r *run.Run) error {
	spec := r.Devices[0].Spec()
	fmt.Fprintf(w, "backend %s: %s", spec.Backend, spec.Device)
	if n := len(r.Devices); n > 1 {
		fmt.Fprintf(w, ", %d ranks", n)
	}
	fmt.Fprint(w, "\n\n")
	if err := r.Job.Recipe.Describe(w, r.Config.Model.Layers); err != nil {
		return err
	}
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	total := int64(0)
	groups := ""
	for _, g := range r.Job.ParamGroups() {
		total += g.N
		groups += fmt.Sprintf("  %s %s", g.Name, writers.Count(g.N))
	}
	fmt.Fprintf(tw, "\nparameters\t%s:%s\n", writers.Count(total), groups)
	if padded := r.Job.Model.Config.PaddedVocab(); padded != r.Config.Model.Vocab {
		fmt.Fprintf(tw, "vocabulary\t%d, padded to %d for the matrix units\n", r.Config.Model.Vocab, padded)
	}
	memory := fmt.Sprintf("temps %s", writers.Bytes(r.Memory.Arena))
	for _, g := range r.Memory.Persistent {
		memory = fmt.Sprintf("%s %s  ", g.Name, writers.Bytes(g.N)) + memory
	}
	fmt.Fprintf(tw, "memory\t%s: %s\n", writers.Bytes(r.Memory.Total()), memory)
	fmt.Fprintf(tw, "compute\t%s per token, %s tokens per step\n", writers.Quantity(r.Job.FLOPsPerToken(), "FLOP"), writers.Count(r.Job.TokensPerStep()))
	info := r.Corpus.Info
	note := r.Note
	if note != "" {
		note = ": " + note
	}
	fmt.Fprintf(tw, "data\t%s tokens to train on, %s to validate%s\n", writers.Count(info.TrainTokens), writers.Count(info.ValTokens), note)
	if text, val, ok := r.Corpus.Text(); ok && len(val) > 0 {
		one, err := data.NGramLoss(text, val, 1)
		if err != nil {
			return err
		}
		two, err := data.NGramLoss(text, val, 2)
		if err != nil {
			return err
		}
		fmt.Fprintf(tw, "to beat\t%.4f nats per byte by counting bytes, %.4f by counting pairs\n", one, two)
	}
	fmt.Fprintf(tw, "run\t%s\n", r.Folder.Dir)
	if err := tw.Flush(); err != nil {
		return err
	}
	for _, e := range r.Skipped {
		fmt.Fprintf(w, "passed over %s: %v\n", e.Path, e.Damage)
	}
	if r.Moved != "" {
		fmt.Fprintf(w, "the checkpoint was written by backend %s: from here on the run is not bit for bit what it would have been there\n", r.Moved)
	}
	switch {
	case r.Resumed > 0:
		fmt.Fprintf(w, "resumed after step %d\n", r.Resumed)
	case r.WasResumed:
		fmt.Fprintln(w, "the run has no whole checkpoint: starting at step 0")
	}
	fmt.Fprintln(w)
	return nil
}

// The sample that a text run ends with.
const (
	samplePrompt = "func "
	sampleTokens = 320
)

func printSummary(ctx context.Context, t *terminal, c trainCmd, r *run.Run, last run.Progress, elapsed time.Duration) error {
	newest, err := r.NewestCheckpoint()
	if err != nil {
		return err
	}
	if last.Step == 0 {
		fmt.Fprintf(t.out, "nothing to do: the run has all its %d steps\n", r.Config.Train.Steps)
	} else {
		fmt.Fprintf(t.out, "trained %s tokens in %s\n", writers.Count(last.Tokens), writers.Clock(elapsed))
		if !math.IsNaN(last.ValLoss) {
			fmt.Fprintf(t.out, "validation loss  %s\n", lossText(last.ValLoss, r))
		}
	}
	if _, _, ok := r.Corpus.Text(); ok {
		if err := printSample(ctx, t, c, newest); err != nil {
			return err
		}
	}
	fmt.Fprintf(t.out, "\ncheckpoint  %s\nnext        %s generate %s --prompt %q\n", newest, t.name, r.Folder.Dir, samplePrompt)
	return nil
}

func printSample(ctx context.Context, t *terminal, c trainCmd, path string) (err error) {
	w, err := run.OpenWeights(path, "")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.Close()) }()
	devices, err := c.open(1)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, closeAll(devices)) }()
	g, err := infer.NewGenerator(ctx, w.Model, w.Recipe, w, devices[0], len(samplePrompt)+sampleTokens)
	if err != nil {
		return err
	}
	fmt.Fprintf(t.out, "\na sample:\n\n%s", samplePrompt)
	err = writeText(ctx, t.out, g, samplePrompt, sampleTokens, infer.Sampling{Temperature: 0.8, TopP: 0.95, Seed: 1})
	fmt.Fprintln(t.out)
	return err
}

// signals turns the first SIGINT or SIGTERM into a cancelled context; the
// second one ends the process at once.
type signals struct {
	ctx  context.Context
	stop func()
	got  chan syscall.Signal
}

func catchSignals(parent context.Context) *signals {
	ctx, cancel := context.WithCancel(parent)
	s := &signals{ctx: ctx, got: make(chan syscall.Signal, 1)}
	incoming := make(chan os.Signal, 1)
	list := []os.Signal{os.Interrupt}
	if runtime.GOOS != "windows" {
		list = append(list, syscall.SIGTERM)
	}
	signal.Notify(incoming, list...)
	go func() {
		select {
		case sig := <-incoming:
			signal.Stop(incoming) // the next one has its default effect
			if number, ok := sig.(syscall.Signal); ok {
				s.got <- number
			}
			cancel()
		case <-ctx.Done():
		}
	}()
	s.stop = func() {
		signal.Stop(incoming)
		cancel()
	}
	return s
}

// received is the signal that cancelled the context; 0 if none did.
func (s *signals) received() syscall.Signal {
	select {
	case n := <-s.got:
		return n
	default:
		return 0
	}
}
