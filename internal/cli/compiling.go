package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"octet/backend"
	"octet/internal/run"
)

// compileInSilence is how long a device may be at its programs before a line says so:
// where they were compiled on an earlier day, they are there sooner.
var compileInSilence = 2 * time.Second

func tellOfCompiling(w io.Writer) {
	fmt.Fprintln(w, "octet: compiling what this machine has not run before; that may take minutes, and is kept.")
}

// telling is a device for package infer: a line says that it compiles for long.
type telling struct {
	backend.Backend
	to io.Writer
}

func (d telling) Load(programs ...*backend.Program) ([]backend.Executable, error) {
	if !d.Spec().HostMemory {
		timer := time.AfterFunc(compileInSilence, func() { tellOfCompiling(d.to) })
		defer timer.Stop()
	}
	return d.Backend.Load(programs...)
}

// limited refuses a model that the memory of this machine or container has no room for.
type limited struct {
	telling
	what    string // needs the memory
	instead string // what to do where there is too little
}

// Fits implements [infer.Limited]. Infer calls Fits before it allocates, so Fits also
// limits Go's memory.
func (d limited) Fits(bytes int64) error {
	run.LimitGoMemory()
	return run.CheckHostMemory(d.what, bytes, d.instead)
}

// modelError is the error of preparing a model for inference: wrong input, unless the
// device failed or a signal came.
func modelError(err error) error {
	if errors.Is(err, backend.ErrDeviceLost) || errors.Is(err, context.Canceled) {
		return err
	}
	return badInput(err)
}
