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
// process that was started to ignore it, by nohup, goes on doing so.
//
// Nor does a reader of the output that went away, a pager or a log's tee, take the
// training with it: SIGPIPE is ignored, and what is written then fails.
type signals struct {
	ctx  context.Context
	stop func()
	got  atomic.Int32
}

// catchSignals begins to listen; announce is called for the first signal.
func catchSignals(parent context.Context, announce func()) *signals {
	ctx, cancel := context.WithCancel(parent)
	s := &signals{ctx: ctx}
	incoming := make(chan os.Signal, 1)
	list := []os.Signal{os.Interrupt}
	if runtime.GOOS != "windows" { // which has no others
		list = append(list, syscall.SIGTERM)
		if !signal.Ignored(syscall.SIGHUP) {
			list = append(list, syscall.SIGHUP)
		}
		signal.Ignore(syscall.SIGPIPE)
	}
	signal.Notify(incoming, list...)
	go func() {
		select {
		case sig := <-incoming:
			if runtime.GOOS != "windows" {
				signal.Ignore(syscall.SIGHUP)
			}
			signal.Stop(incoming) // the next one has its default effect
			if number, ok := sig.(syscall.Signal); ok {
				s.got.Store(int32(number))
			}
			announce()
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

// received is the number of the signal that cancelled the context; 0 if none
// did.
func (s *signals) received() int { return int(s.got.Load()) }
