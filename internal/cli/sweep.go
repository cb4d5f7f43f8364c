package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"octet/internal/sweep"
	"octet/internal/writers"
)

type sweepCmd struct {
	File     string   `arg:"" name:"sweep.toml" help:"The sweep file."`
	Out      string   `short:"o" required:"" placeholder:"DIR" help:"The sweep's folder; the same command resumes the sweep in it."`
	Jobs     int      `placeholder:"N" help:"Runs at a time; default: 0, as many as processors, devices and memory allow. The results do not depend on it."`
	Backend  []string `placeholder:"NAME,…" help:"Backend of all runs; several devices, such as cuda:0,cuda:1, share the runs. Default: backends of the file, or the best that is present."`
	Retry    bool     `help:"Run failed runs again. Without it they stay failed."`
	JSON     bool     `xor:"form" help:"Print one JSON object with every run."`
	Markdown bool     `xor:"form" help:"Print the tables as Markdown."`
}

// Help returns the text that sweep --help adds.
func (sweepCmd) Help() string {
	return `The file lists values; the sweep runs every combination of them. All keys are optional, and all paths relative to the file:

  config   = "base.toml"                keys as of octet train
  recipes  = ["bf16", "fp8-smooth"]     names or recipe files
  seeds    = [1, 2, 3]
  backends = ["emu", "emu:h100"]        device models
  data     = [["a.txt"], ["b/"]]
  set      = ["train.steps=250"]        for all runs
  [grid]
  "optimizer.lr" = [1e-3, 3e-3]
  [[variants]]                          beside recipes, or instead of them
  name = "m1 e5m2"
  set  = ["recipe=fp8-smooth", "precision.m1=e5m2"]
  [[conditions]]                        crossed with recipes and variants
  name = "long"
  set  = ["train.steps=1000"]

The first list with several values has the baseline: its first value. Runs with equal seeds are compared. octet checks all runs before it starts the first one. Ctrl-C saves a checkpoint of each run; the same command then resumes, also after a kill. More seeds or values in the file add runs. DIR/results.csv has a line for each run.

Examples:
  octet sweep recipes.toml -o sweeps/recipes
  octet sweep recipes.toml -o sweeps/recipes --jobs 2 --json
  octet sweep recipes.toml -o sweeps/recipes --retry
  octet sweep large.toml -o sweeps/large --backend cuda:0,cuda:1`
}

func (c sweepCmd) Run(ctx context.Context, t *terminal) (err error) {
	status := writers.NewStatusLine(t.err)
	signals := catchSignals(ctx, 0, func(int) {
		status.Print("octet: stopping the runs; a second signal quits without saving")
	})
	defer signals.stop()
	s, err := sweep.Open(signals.ctx, sweep.Options{File: c.File, Dir: c.Out, Backends: c.Backend, Jobs: c.Jobs, Retry: c.Retry, Sources: t.sources})
	if caught := signals.received(); caught != 0 && err != nil {
		fmt.Fprintln(t.err, "octet: stopped before the first run; nothing was changed")
		return stopped{128 + caught}
	}
	if err != nil {
		return badInput(err)
	}
	return t.closed(c.sweep(t, s, status, signals), s.Close())
}

// sweep trains the pending runs and prints the results.
func (c sweepCmd) sweep(t *terminal, s *sweep.Sweep, status *writers.StatusLine, signals *signals) error {
	for _, folder := range s.Strays {
		status.Print(fmt.Sprintf("octet: %s is not part of the sweep file; the table omits it", folder))
	}
	if p := s.Progress(); p.Ended < p.Runs {
		begun := ""
		if p.Begun > 0 {
			begun = fmt.Sprintf(" (%d of them resume)", p.Begun)
		}
		status.Print(fmt.Sprintf("octet: %d of %d runs are pending%s, %d at a time on %s, %s each. Ctrl-C saves.",
			p.Runs-p.Ended, p.Runs, begun, s.Jobs, s.Backends(), counted(s.Threads, "thread")))
		stop := showRuns(s, status, writers.Columns(t.err) > 0)
		err := s.Train(signals.ctx, func(r sweep.Row) {
			p := s.Progress()
			status.Print(fmt.Sprintf("%d of %d: %s", p.Ended, p.Runs, rowText(r)))
		}, func(folder string) {
			status.Print(fmt.Sprintf("octet: waiting for %s, which another process uses", folder))
		})
		stop()
		status.Done()
		if caught := signals.received(); caught != 0 && errors.Is(err, context.Canceled) {
			p := s.Progress()
			fmt.Fprintf(prose(t.err), "octet: stopped; %d of %d runs have ended. The same command resumes the others.\n", p.Ended, p.Runs)
			if c.JSON {
				err = printSweepJSON(t.out, s)
			} else {
				err = nil
			}
			return cmp.Or(err, error(stopped{128 + caught}))
		}
		if err != nil {
			return fmt.Errorf("%w; the runs are saved, and the same command resumes them", err)
		}
	}
	var err error
	switch {
	case c.JSON:
		err = printSweepJSON(t.out, s)
	case c.Markdown:
		err = printSweepMarkdown(t.out, s)
	default:
		err = printSweep(t.out, s)
	}
	failed := 0
	for _, r := range s.Rows() {
		if r.State == sweep.Failed {
			failed++
		}
	}
	if err == nil && failed > 0 {
		err = fmt.Errorf("%s failed; --retry tries again", counted(failed, "run"))
	}
	return err
}

// showEvery is the interval in which the status line of a sweep changes.
const showEvery = time.Second

// showRuns shows a status line until stop is called. Only a terminal has it: elsewhere a line
// for each run is enough.
func showRuns(s *sweep.Sweep, status *writers.StatusLine, onTerminal bool) (stop func()) {
	if !onTerminal {
		return func() {}
	}
	begin, start := s.Progress(), time.Now()
	end, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		ticker := time.NewTicker(showEvery)
		defer ticker.Stop()
		for {
			p := s.Progress()
			shown := writers.Runs{Ended: p.Ended, Running: p.Running, All: p.Runs, Steps: p.Steps, AllSteps: p.AllSteps}
			if done := p.Steps - begin.Steps; done > 0 {
				eta := time.Duration(float64(time.Since(start)) * float64(p.AllSteps-p.Steps) / float64(done))
				shown.ETA = &eta
			}
			status.Show(shown)
			select {
			case <-ticker.C:
			case <-end:
				return
			}
		}
	}()
	return func() {
		close(end)
		<-ended
	}
}

// rowText says how a run ended.
func rowText(r sweep.Row) string {
	name := fmt.Sprintf("%s, seed %d", r.Variant.Name, r.Seed)
	if r.State == sweep.Failed {
		return name + ": failed: " + shortened(r.Error)
	}
	return fmt.Sprintf("%s: validation %.4f nats per token", name, r.ValLoss)
}

// counted returns a number with a noun in singular or plural.
func counted(n int, noun string) string {
	if n != 1 {
		noun += "s"
	}
	return fmt.Sprintf("%d %s", n, noun)
}
