//go:build unix

package cli

import (
	"os"
	"syscall"
)

// saveSignal requests a checkpoint from a run.
var saveSignal os.Signal = syscall.SIGUSR1
