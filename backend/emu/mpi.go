//go:build mpi && cgo && linux

package emu

import (
	"context"
	"fmt"

	"octet/csrc/libmpi"
)

// openMPI connects the processes that an MPI launcher started. It returns when all of them
// have called it, or when ctx ends.
func openMPI(ctx context.Context) (transport, error) {
	w, err := libmpi.Open(ctx)
	if err != nil {
		return nil, fmt.Errorf("ranks over MPI: %w", err)
	}
	return w, nil
}

// exitMPI ends the process.
func exitMPI(status int) { libmpi.Exit(status) }
