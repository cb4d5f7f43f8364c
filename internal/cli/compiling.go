package cli

import (
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

// inferring is a device for package infer: a line says that it compiles for long, and
// it refuses a model that the memory of this machine or container has no room for.
type inferring struct {
	backend.Backend
	to      io.Writer
	what    string // needs the memory
	instead string // what to do where there is too little; empty: it is not checked
}

func (d inferring) Load(programs ...*backend.Program) ([]backend.Executable, error) {
	if !d.Spec().HostMemory {
		timer := time.AfterFunc(compileInSilence, func() { tellOfCompiling(d.to) })
		defer timer.Stop()
	}
	return d.Backend.Load(programs...)
}

// Fits implements [infer.Limited]. A device with memory of its own refuses what does
// not fit when it allocates. Infer calls Fits before it allocates, so Fits also limits Go's
// memory.
func (d inferring) Fits(bytes int64) error {
	if d.instead == "" || !d.Spec().HostMemory {
		return nil
	}
	run.LimitGoMemory()
	return run.CheckHostMemory(d.what, bytes, d.instead)
}
