//go:build !unix

package cli

import "os"

// saveSignal is nil: there is no signal here that asks for a checkpoint.
var saveSignal os.Signal
