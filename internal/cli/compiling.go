package cli

import (
	"fmt"
	"io"
	"time"

	"octet/backend"
)

// compileInSilence is how long a device may be at its programs before a line says so:
// where they were compiled on an earlier day, they are there sooner.
var compileInSilence = 2 * time.Second

func tellOfCompiling(w io.Writer) {
	fmt.Fprintln(w, "octet: compiling what this machine has not run before; that may take minutes, and is kept.")
}

// telling is a device for package infer that says so.
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
