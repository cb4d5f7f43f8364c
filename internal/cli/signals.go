package cli

import (
	"context"
	"os"
	"os/signal"
	"runtime"
	"sync/atomic"
	"syscall"
)

// signals turns the first SIGINT, SIGTERM or SIGHUP into a cancelled context; a
// second SIGINT or SIGTERM ends the process at once.
//
// A terminal that is closed sends SIGHUP, often twice: the shell to its jobs and
// the system to whoever is in the foreground. So the second one does nothing. A
// process that was started to ignore it, by nohup, goes on doing so. Not so for SIGINT:
// shells make what a script starts with & ignore it, and whoever sends it to one
// process by hand means it.
//
// Nor does a reader of the output that went away, a pager or a log's tee, take the
// training with it: SIGPIPE is ignored, and what is written then fails.
//
// SIGUSR1, where the system has it, asks for a checkpoint. Those that arrive before the
// checkpoint is begun are one.
type signals struct {
	save chan os.Signal
	ctx  context.Context
	stop func()
	got  atomic.Int32
}

// catchSignals begins to listen; announce is called for the first signal.
func catchSignals(parent context.Context, announce func()) *signals {
	ctx, cancel := context.WithCancel(parent)
	s := &signals{ctx: ctx, save: make(chan os.Signal, 1)}
	if saveSignal != nil {
		signal.Notify(s.save, saveSignal)
	}
	incoming, again := make(chan os.Signal, 1), make(chan os.Signal, 1)
	ignored := signal.Ignored(os.Interrupt) // asked before Notify changes it
	list := []os.Signal{os.Interrupt}
	if runtime.GOOS != "windows" { // which has no others
		list = append(list, syscall.SIGTERM)
		if !signal.Ignored(syscall.SIGHUP) {
			list = append(list, syscall.SIGHUP)
		}
		signal.Ignore(syscall.SIGPIPE)
	}
	signal.Notify(incoming, list...)
	done := make(chan struct{})
	go func() {
		select {
		case sig := <-incoming:
			if runtime.GOOS != "windows" {
				signal.Ignore(syscall.SIGHUP)
			}
			if ignored {
				signal.Notify(again, os.Interrupt)
			}
			signal.Stop(incoming) // the next one has the effect that it had at the start: mostly its default
			if number, ok := sig.(syscall.Signal); ok {
				s.got.Store(int32(number))
			}
			announce()
			cancel()
		case <-ctx.Done():
			return
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
		cancel()
		close(done)
	}
	return s
}

// received is the number of the signal that cancelled the context; 0 if none
// did.
func (s *signals) received() int { return int(s.got.Load()) }
