package sweep

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"sync"
	"time"

	"octet/checkpoint"
	"octet/internal/config"
	"octet/internal/disk"
	"octet/internal/writers"
)

// Train trains the pending runs, each in a process of its own: this program with the
// arguments of octet train. It calls ended after each run that is done or failed, and waits
// once for each run that it cannot start because another process uses its folder; both from
// one goroutine at a time. The error is of the sweep's own files, or that of ctx: a
// cancelled ctx stops the runs, each of which saves a checkpoint.
func (s *Sweep) Train(ctx context.Context, ended func(Row), waits func(folder string)) error {
	executable, err := os.Executable()
	if err != nil {
		return fmt.Errorf("this program cannot start itself: %w", err)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	next := make(chan *Row)
	var reporting sync.Mutex
	var workers sync.WaitGroup
	for i := range s.Jobs {
		c := children{
			executable: executable, place: s.places[i%len(s.places)], sweep: s,
			waits: func(folder string) {
				reporting.Lock()
				defer reporting.Unlock()
				waits(folder)
			},
		}
		workers.Go(func() {
			for r := range next {
				if err := c.train(ctx, r); err != nil {
					cancel(err)
					continue
				}
				if row := s.row(r); row.State != Pending {
					reporting.Lock()
					ended(row)
					reporting.Unlock()
				}
			}
		})
	}
	stopRefreshing := s.refreshing(cancel)
	for _, r := range s.rows {
		if s.row(r).State != Pending {
			continue
		}
		select {
		case next <- r:
		case <-ctx.Done():
		}
	}
	close(next)
	workers.Wait()
	stopRefreshing()
	return errors.Join(context.Cause(ctx), s.refresh()) //nolint:contextcheck // the files are written after ctx ended, too
}

// refreshEvery is how often results.csv gets the steps of the runs that train.
const refreshEvery = 5 * time.Second

// refreshing refreshes results.csv until the returned function is called; an error goes to
// failed.
func (s *Sweep) refreshing(failed func(error)) (stop func()) {
	end := make(chan struct{})
	var done sync.WaitGroup
	done.Go(func() {
		ticker := time.NewTicker(refreshEvery)
		defer ticker.Stop()
		for {
			select {
			case <-ticker.C:
				if err := s.refresh(); err != nil {
					failed(err)
				}
			case <-end:
				return
			}
		}
	})
	return func() {
		close(end)
		done.Wait()
	}
}

// refresh reads the steps of the runs that have not ended and writes results.csv.
func (s *Sweep) refresh() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range s.rows {
		if r.State == Pending {
			s.read(r)
		}
	}
	return s.writeCSV()
}

// row returns a copy of a row.
func (s *Sweep) row(r *Row) Row {
	s.mu.Lock()
	defer s.mu.Unlock()
	return *r
}

// children starts one process after the other.
type children struct {
	executable string
	place      string
	sweep      *Sweep
	waits      func(folder string)
}

// train trains a run unless another process has done so meanwhile, and records its end. The
// row stays pending if ctx ends.
func (c *children) train(ctx context.Context, r *Row) error {
	s := c.sweep
	name := filepath.Join(s.Dir, "logs", r.Variant.Folder, "seed-"+strconv.FormatInt(r.Seed, 10)+".log")
	if err := disk.MakeDirs(filepath.Dir(name)); err != nil {
		return err
	}
	log, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE|os.O_APPEND, 0o666)
	if err != nil {
		return err
	}
	defer log.Close()
	if err := c.wait(ctx, r, log); err != nil {
		return err
	}
	if s.reread(r).State == Done {
		return s.record(r, nil, false)
	}
	info, err := log.Stat()
	if err != nil {
		return err
	}
	s.setRunning(r, true)
	failure := c.run(ctx, r, log)
	s.setRunning(r, false)
	if ctx.Err() != nil {
		return nil
	}
	done := s.reread(r).State == Done
	exit, ran := errors.AsType[*exec.ExitError](failure)
	switch status := exitStatus(exit); {
	case done: // the process may have failed after its last checkpoint
	case ran && (status < 0 || status > 128): // the same command may well succeed later
		return s.record(r, fmt.Errorf("a signal ended the process (%s); the same command resumes the run", exit.ProcessState), false)
	case ran:
		return s.record(r, errors.New(lastError(log, info.Size(), failure)), true)
	case failure != nil:
		return s.record(r, failure, true)
	default:
		return s.record(r, fmt.Errorf("the process ended, but the run has no intact checkpoint of step %d; %s has its output", r.Variant.Config.Train.Steps, name), true)
	}
	return s.record(r, nil, false)
}

// exitStatus returns the status of a process; negative if a signal ended it.
func exitStatus(err *exec.ExitError) int {
	if err == nil {
		return 0
	}
	return err.ExitCode()
}

// pollEvery is how often a sweep tries to lock a run again.
const pollEvery = 100 * time.Millisecond

// wait waits until no other process trains the run. Processes of a killed sweep may live a
// little longer: they hold the lock of the log from their start, since they inherit it, and
// that of the run folder while they use it.
func (c *children) wait(ctx context.Context, r *Row, log *os.File) error {
	dir := filepath.Join(c.sweep.Dir, r.Folder)
	for first := true; ; first = false {
		locked, err := lockFile(log)
		if err != nil {
			return err
		}
		if locked {
			if _, err := os.Stat(dir); errors.Is(err, os.ErrNotExist) {
				return nil
			}
			unlock, err := checkpoint.Lock(dir)
			if err == nil {
				return unlock()
			}
			if !errors.Is(err, checkpoint.ErrLocked) {
				return err
			}
		}
		if first {
			c.waits(r.Folder)
		}
		select {
		case <-time.After(pollEvery):
		case <-ctx.Done():
			return nil
		}
	}
}

// run runs the process of a run.
func (c *children) run(ctx context.Context, r *Row, log *os.File) error {
	s := c.sweep
	place := c.place
	if r.Variant.Backend != "" {
		place = r.Variant.Backend
	}
	cmd := exec.CommandContext(ctx, c.executable, "train", filepath.Join(s.Dir, "configs", r.Variant.Folder, config.RunFile),
		fmt.Sprintf("seed=%d", r.Seed), "--out="+filepath.Join(s.Dir, r.Folder), "--resume=auto", "--json",
		"--backend="+place, fmt.Sprintf("--threads=%d", s.Threads))
	cmd.Stdout, cmd.Stderr = log, log
	cmd.Cancel = func() error { return stop(cmd.Process) }
	cmd.SysProcAttr = attributes()
	// Linux ends the child when the thread that started it ends.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	return cmd.Run()
}

// reread reads the state of a row again and returns it.
func (s *Sweep) reread(r *Row) Row {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.read(r)
	return *r
}

// record records the end of a run; failure is nil for one that is done. The files keep a
// failure for later processes if it is lasting.
func (s *Sweep) record(r *Row, failure error, lasting bool) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if failure != nil {
		r.State, r.Error = Failed, failure.Error()
		if lasting {
			s.failures[r.Folder] = r.Error
			if err := s.writeFailures(); err != nil {
				return err
			}
		}
	}
	return s.writeCSV()
}

// Progress counts runs, and steps of all runs that have not failed.
type Progress struct {
	Ended, Running, Runs int // Ended: done or failed
	Begun                int // not ended, and has steps
	Steps, AllSteps      int
}

// Progress reads how far the runs are.
func (s *Sweep) Progress() (p Progress) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range s.rows {
		p.Runs++
		if r.running {
			p.Running++
			r.Step, r.Loss, r.ValLoss = lastMetrics(filepath.Join(s.Dir, r.Folder, writers.MetricsFile))
		}
		switch {
		case r.State != Pending:
			p.Ended++
		case r.Step > 0:
			p.Begun++
		}
		p.Steps += r.Step
		if r.State == Failed {
			p.AllSteps += r.Step
		} else {
			p.AllSteps += r.Variant.Config.Train.Steps
		}
	}
	return p
}

func (s *Sweep) setRunning(r *Row, running bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r.running = running
}
