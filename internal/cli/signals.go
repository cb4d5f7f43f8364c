package cli

import (
	"context"
	"os"
	"os/signal"
	"runtime"
	"sync/atomic"
	"syscall"
	"time"

	"octet/run"
)

// signals turns the first SIGINT, SIGTERM or SIGHUP into a cancelled context; a
// second SIGINT or SIGTERM ends the process at once.
//
// Closing a terminal often sends SIGHUP twice: the shell sends it to its jobs, the system
// to the foreground processes. So a second SIGHUP does nothing. A process that ignores
// SIGHUP from its start, as under nohup, keeps ignoring it. SIGINT is always handled:
// shells start background jobs of a script with SIGINT ignored, but a user who sends it to
// such a process wants it to stop.
//
// SIGPIPE is ignored and the write fails instead, so that training survives the end of a
// pager or of tee.
//
// SIGUSR1, on systems that have it, requests a checkpoint. Several requests before the
// checkpoint begins give one checkpoint.
//
// A scheduler may send a signal to all processes of a job, and a process that started ranks
// passes it on, so a rank gets it twice. Within repeatsOfRanks these are one signal.
type signals struct {
	save chan os.Signal
	ctx  context.Context
	stop func()
	got  atomic.Int32
}

// repeatsOfRanks is how long a rank takes further signals for the first one.
const repeatsOfRanks = time.Second

// catchSignals starts to listen. On the first signal it calls announce with its number, and
// then cancels the context. Further signals have no effect for the duration of repeats.
func catchSignals(parent context.Context, repeats time.Duration, announce func(number int)) *signals {
	ctx, cancel := context.WithCancelCause(parent)
	s := &signals{ctx: ctx, save: make(chan os.Signal, 1)}
	if saveSignal != nil {
		signal.Notify(s.save, saveSignal)
	}
	incoming, again := make(chan os.Signal, 1), make(chan os.Signal, 1)
	ignored := signal.Ignored(os.Interrupt) // asked before Notify changes it
	signal.Notify(incoming, stopSignals()...)
	ignorePipe()
	// The next signal has its original effect, usually the default.
	restore := func() {
		if ignored {
			signal.Notify(again, os.Interrupt)
		}
		signal.Stop(incoming)
	}
	done := make(chan struct{})
	go func() {
		select {
		case sig := <-incoming:
			if runtime.GOOS != "windows" {
				signal.Ignore(syscall.SIGHUP)
			}
			if repeats == 0 {
				restore()
			}
			number, _ := sig.(syscall.Signal)
			s.got.Store(int32(number))
			announce(int(number))
			cancel(run.Interrupt{Signal: int(number)})
		case <-ctx.Done():
			return
		}
		if repeats > 0 {
			select {
			case <-time.After(repeats):
				restore()
			case <-done:
				return
			}
		}
		select {
		case <-again:
			os.Exit(128 + int(syscall.SIGINT))
		case <-done:
		}
	}()
	s.stop = func() {
		signal.Stop(incoming)
		signal.Stop(again)
		signal.Stop(s.save)
		cancel(nil)
		close(done)
	}
	return s
}

// stopSignals are the signals that stop a run.
func stopSignals() []os.Signal {
	list := []os.Signal{os.Interrupt}
	if runtime.GOOS != "windows" { // Windows has only os.Interrupt
		list = append(list, syscall.SIGTERM)
		if !signal.Ignored(syscall.SIGHUP) {
			list = append(list, syscall.SIGHUP)
		}
	}
	return list
}

// ignorePipe makes a write to a closed pipe fail, instead of ending the process.
func ignorePipe() {
	if runtime.GOOS != "windows" {
		signal.Ignore(syscall.SIGPIPE)
	}
}

// received returns the number of the signal that cancelled the context; 0 if there was none.
func (s *signals) received() int { return int(s.got.Load()) }
