//go:build unix

package cli

import (
	"os"
	"syscall"
)

// saveSignal asks a run for a checkpoint.
var saveSignal os.Signal = syscall.SIGUSR1
