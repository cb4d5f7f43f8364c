package cli

import (
	"context"
	"os"
	"os/signal"
	"runtime"
	"sync/atomic"
	"syscall"
)

// signals turns the first SIGINT or SIGTERM into a cancelled context; the
// second one ends the process at once.
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
	if runtime.GOOS != "windows" {
		list = append(list, syscall.SIGTERM)
	}
	signal.Notify(incoming, list...)
	go func() {
		select {
		case sig := <-incoming:
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
