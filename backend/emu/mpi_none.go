//go:build !(mpi && cgo && linux)

package emu

import (
	"context"
	"fmt"
	"os"

	"octet/backend"
)

// openMPI returns ErrNotBuilt: this binary has no MPI.
func openMPI(context.Context) (transport, error) {
	return nil, fmt.Errorf("ranks over MPI: %w: build it on Linux, with a C compiler and make build TAGS=mpi", backend.ErrNotBuilt)
}

// exitMPI ends the process.
func exitMPI(status int) { os.Exit(status) }
