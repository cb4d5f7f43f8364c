package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"octet/backend"
	"octet/internal/hostmem"
)

// compileNoticeAfter is how long a device may load its programs before a line says that it
// compiles. Programs in the compile cache load faster.
var compileNoticeAfter = 2 * time.Second

func printCompiling(w io.Writer) {
	fmt.Fprintln(prose(w), "octet: compiling programs that this machine has not cached; this may take minutes.")
}

// compileNotice is a device that prints a line if loading programs takes long.
type compileNotice struct {
	backend.Backend
	to io.Writer
}

func (d compileNotice) Load(programs ...*backend.Program) ([]backend.Executable, error) {
	if !d.Spec().HostMemory {
		timer := time.AfterFunc(compileNoticeAfter, func() { printCompiling(d.to) })
		defer timer.Stop()
	}
	return d.Backend.Load(programs...)
}

// memoryLimited refuses a model that does not fit into the memory of this machine or
// container.
type memoryLimited struct {
	compileNotice
	what    string // subject of the error: "the evaluation"
	instead string // what the user can do
}

// Fits implements [infer.Limited]. Infer calls Fits before it allocates, so Fits also
// limits Go's memory.
func (d memoryLimited) Fits(bytes int64) error {
	hostmem.LimitGo()
	return hostmem.Check(d.what, bytes, d.instead)
}

// modelError marks an error of preparing a model for inference as bad input, unless the
// device was lost or a signal came.
func modelError(err error) error {
	if errors.Is(err, backend.ErrDeviceLost) || errors.Is(err, context.Canceled) {
		return err
	}
	return badInput(err)
}
