//go:build !unix

package cli

import "os"

// saveSignal is nil: this system has no signal that requests a checkpoint.
var saveSignal os.Signal
